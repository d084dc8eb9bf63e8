"""Pictures of zoos: the frame of results in, what all models say together out.

Up to some thousand marks each model has its own; of more, pictures show how many models lie where,
or what the middle of them does, and say so.
"""

from xsp.plot.zoo.accuracy import zoo_accuracy
from xsp.plot.zoo.heat import zoo_layer_types, zoo_primitives
from xsp.plot.zoo.roofline import zoo_roofline
from xsp.plot.zoo.thirds import zoo_thirds
from xsp.plot.zoo.throughput import zoo_throughput

__all__ = [
    "zoo_accuracy",
    "zoo_layer_types",
    "zoo_primitives",
    "zoo_roofline",
    "zoo_thirds",
    "zoo_throughput",
]
