"""MKL: BLAS, LAPACK and FFT calls, by its verbose mode."""
