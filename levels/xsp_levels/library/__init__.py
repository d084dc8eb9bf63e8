"""Library level: calls of oneDNN, MKL, OpenBLAS, cuBLAS and cuDNN."""
