"""Modules: calls of PyTorch modules in, rows of kind layer out.

`entry_point` is where calls, backward passes and optimizer steps enter PyTorch, `layer` records
the calls, `module_path` makes plain records of them and `row` makes rows. With detail, `shape`
tells what went in and out, `source_line` which line of the user's called. Code that calls no
modules has a graph: `written` reads that of exported, scripted and traced modules, `compiled` that
of torch.compile, whose generated code `compiled_code` reads, and `graph` makes layers of them.
`empty_span` shows what recording costs.
"""
