"""ONNX Runtime: runs of sessions in, rows of pipeline spans, layers and operators out.

`provider` arms the recorder and makes rows of what it recorded; `entry_point` finds the runs, and a
`twin` of the session, which ONNX Runtime profiles, tells of the nodes. `graph`, `fusion` and
`layer` find the layers that a node came from.
"""
