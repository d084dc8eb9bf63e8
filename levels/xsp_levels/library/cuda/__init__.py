"""cuBLAS, cuBLASLt and cuDNN: calls, by their loggers."""
