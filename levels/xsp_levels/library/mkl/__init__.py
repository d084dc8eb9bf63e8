"""MKL: lines of its verbose mode in, a row per BLAS, LAPACK or FFT call out.

`provider` opens an `MklWatch` (`breakpoint`) for every MKL in the process: `verbose` has MKL write
its lines to memory, and `native.perf_event` records when each line is written. `line` parses
lines, `row` joins lines and times to rows.
"""
