"""Library level: providers of the calls of oneDNN, MKL, OpenBLAS, cuBLAS and cuDNN.

`blas_flop` counts the operations of BLAS and LAPACK calls for several of the providers.
"""
