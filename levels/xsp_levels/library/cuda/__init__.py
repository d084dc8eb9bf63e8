"""Records the computing calls of cuBLAS, cuBLASLt and cuDNN with the libraries' loggers.

`provider` points the libraries' loggers at a `log`, which keeps messages with time and thread by
callbacks in machine code; `call` parses messages into calls, of which `provider` makes rows.
"""
