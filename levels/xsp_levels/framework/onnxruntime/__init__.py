"""Records runs of ONNX Runtime sessions as rows of region spans, layers and operators.

`provider` arms the recorder and makes rows of what it recorded; `entry_point` finds the runs, and a
`twin` of the session, which ONNX Runtime profiles, tells of the nodes. `graph`, `fusion` and
`layer` find the layers that a node came from.
"""
