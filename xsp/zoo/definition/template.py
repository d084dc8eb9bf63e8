"""The template of zoo files: nothing in, a commented file that is valid as it is out."""

from __future__ import annotations

_TEMPLATE = """\
# A zoo: which models are measured, and how. Every key: docs/zoo.md.
#   xsp zoo list THIS_FILE                  what would run, and about how long it takes
#   xsp zoo run THIS_FILE -o results/       measure it; the same again goes on where it was

[zoo]
name = "first zoo"

# What holds for every model that says nothing else. Lists are measured in all combinations.
[defaults]
batch = [1, 8]                  # or "1..64": 1 and its doublings
levels = 2                      # 1 the model, 2 its layers and operators, 3 calls of libraries, ...
budget = 5.0                    # seconds of measuring each point; loading comes on top
time_limit = 600                # seconds that a point may take, loading included
# memory_limit = "8 GiB"        # that a model's process may have resident
# runs = 10                     # evaluations on each rung, in place of as many as it takes
# threads = [1, 2]              # of the framework and its libraries
# precision = ["float32", "bfloat16"]
# compile = [false, true]       # eagerly, and by torch.compile, tf.function or jax.jit
# device = "cpu"                # or "cuda:0"
# framework = "torch"           # or "tensorflow", "jax", "onnxruntime", for models that take them
# train = false                 # whether an evaluation is a training step
# check = true                  # whether two calls of a model give the same output
# set = { sequence = 128 }      # further settings, as of xsp profile --set

# Models are named as for xsp profile; patterns stand for all that they match. Weights are random,
# and nothing is downloaded.
[[model]]
targets = ["torchvision:resnet*", "torchvision:mobilenet_v3_*"]
exclude = ["resnet152"]
family = "ResNet and MobileNet"

# Accuracies that are known from elsewhere, for pictures of latency against accuracy.
[model.accuracy_pct]
resnet18 = 69.8
resnet50 = 76.1

# A [[model]] may have any key of [defaults].
[[model]]
target = "timm:resnet10t"
name = "a small ResNet"
batch = [1, 2, 4, 8, 16]
facts = { year = 2022 }

# More of them:
# [[model]]
# target = "torchvision"                    # all of its classifiers
# [[model]]
# target = "transformers:bert,gpt2"         # types, with their default configurations
# set = { sequence = [128, 512] }
# [[model]]
# target = "keras"                          # all of keras.applications
# [[model]]
# target = "onnx:models/"                   # every *.onnx in a folder beside this file
# [[model]]
# target = "models.py:make_models"          # yours: a function that returns names and models
"""


def template() -> str:
    """Return the text of a zoo file to begin with."""
    return _TEMPLATE
