"""Records TensorFlow's operators and steps as rows of kind `region`, layer and op.

`provider` arms the recorders and makes rows of what they recorded: operators (`profiler`), and
what a program does besides calling its model (`program`). Keras's layers are recorded by the room
beside this one.
"""
