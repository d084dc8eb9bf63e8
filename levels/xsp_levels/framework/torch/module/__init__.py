"""Modules: calls of PyTorch modules in, rows of kind layer out.

`entry_point` is where calls, backward passes and optimizer steps enter PyTorch, `layer` records
the calls, `module_path` makes plain records of them and `row` makes rows. With detail, `shape`
tells what went in and out, `source_line` which line of the user's called, and `scope` where the
operators of exported, scripted and traced code come from. `compiled` makes layers of what
torch.compile generated, whose calls `compiled_code` reads. `empty_span` shows what recording costs.
"""
