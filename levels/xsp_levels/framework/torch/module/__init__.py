"""Modules: calls of PyTorch modules become rows of kind layer.

`entry_point` is where calls, backward passes and optimizer steps enter PyTorch, `layer` records
the calls, `module_path` makes plain records of them and `row` makes rows. With detail,
`source_line` tells which line of the user's called. `graph` makes layers of exported, scripted and
traced modules, whose code calls no modules.
"""
