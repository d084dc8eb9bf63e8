"""cuBLAS, cuBLASLt and cuDNN: messages of their loggers in, a row per computing call out.

`provider` points the libraries' loggers (`logger`) at a `log`, which keeps messages with time
and thread by callbacks in machine code; `call` parses messages into calls, `row` makes rows.
"""
