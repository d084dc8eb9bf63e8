"""oneDNN: lines of its verbose mode in, a row of kind call per primitive out.

`provider` sets the verbose mode of every copy of oneDNN that `switch` finds, and takes the lines
off standard output with `native.stdout_tap`; `line` parses the lines, `work` counts operations
and bytes of a primitive.
"""
