"""Sources of what is measured: a specification in, the function to call with its inputs out.

A module for each: pytorch.py (with the models of zoo.py), keras.py, onnx.py, saved_model.py,
jax.py and function.py. Each has `subject(spec)`, and but for functions `prepare(spec)`, which
imports libraries, and `check(spec)`, which builds nothing. Nothing is downloaded: latencies do
not depend on the values of the weights.
"""
