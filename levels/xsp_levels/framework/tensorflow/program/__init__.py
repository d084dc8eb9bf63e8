"""Programs around TensorFlow models: what a program does in, evaluations and parts between out.

`watcher` finds evaluations, by `entry` where Python enters TensorFlow; `call` describes them, and
`effect` what a graph changes. `step` records the parts of a training step, `state` keeps what a
call may write to.
"""
