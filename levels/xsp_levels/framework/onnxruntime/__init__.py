"""Records runs of ONNX Runtime sessions as rows of region spans, layers and operators.

`provider` arms the `recorder` and makes rows of what it recorded. `entry_point` and `call` find the
runs, and a twin of the session (`record`), which ONNX Runtime profiles, tells of the nodes
(`profile`). `graph` reads a `model`, and `layer` finds the layers that a node came from.
"""
