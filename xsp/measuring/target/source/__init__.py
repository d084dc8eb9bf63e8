"""Each source of targets has a module, which makes the function to call from a specification.

They are pytorch.py (with the models of zoo.py), keras.py, onnx.py, saved_model.py,
jax.py, function.py, and made.py for models that a function makes. Each has `subject(spec)`, and but
for functions `prepare(spec)`, which imports libraries, and `check(spec)`, which builds nothing;
`models` says which models there are. Nothing is downloaded: latencies do
not depend on the values of the weights.
"""
