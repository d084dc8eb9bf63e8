"""What programs do with TensorFlow models, and what a call of one changes.

`watcher` logs what a program does, by `entry`, where Python enters TensorFlow; `call` describes
calls, and `effect` what a graph changes. `step` records the parts of a training step in a
measurement.
"""
