"""TensorFlow: its operators and steps in, rows of pipeline, layer and op out.

`provider` arms the recorders and makes rows of what they recorded: operators (`profiler`), and
what a program does besides calling its model (`program`). Keras's layers are recorded by the room
beside this one.
"""
