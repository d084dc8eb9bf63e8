"""Logs the calls of TensorFlow models in programs, and tells what a call changes.

`watcher` logs what a program does, by `entry`, where Python enters TensorFlow; `call` describes
calls, and `effect` what a graph changes. `step` records the parts of a training step in a
measurement.
"""
