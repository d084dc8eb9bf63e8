"""Makes a row of kind call per primitive from lines of oneDNN's verbose mode.

`provider` sets the verbose mode of every copy of oneDNN that `switch` finds, and takes the lines
off standard output with `native.stdout_tap`; `line` parses the lines, `work` counts operations
and bytes of a primitive.
"""
