"""TensorFlow's profiler: its events in, rows of kind op and of derived layers out."""
