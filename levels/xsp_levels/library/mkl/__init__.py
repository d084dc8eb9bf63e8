"""Records BLAS, LAPACK and FFT calls of MKL, a row per call, with MKL's verbose mode.

`provider` opens a watch for every MKL in the process: `verbose` has MKL write its lines to memory,
and `native.perf_event` records when each line is written. `provider` parses the lines, and joins
them and the times to rows.
"""
