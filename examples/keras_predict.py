"""Profile a Keras model in a program: its predictions and its training, layer by layer.

python examples/keras_predict.py
"""

from __future__ import annotations

import keras
import numpy as np

import xsp


def main() -> None:
    """Print trees of an eager call, and of predicting and training in one block."""
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(8, 3, activation="relu", name="convolution"),
            keras.layers.GlobalAveragePooling2D(name="pooling"),
            keras.layers.Dense(10, activation="softmax", name="classes"),
        ],
        name="net",
    )
    model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
    images = np.random.default_rng(0).random((64, 16, 16, 3), np.float32)
    labels = np.zeros(64, np.int32)
    print(xsp.measure(model, images[:8], levels=2, budget=1))  # eagerly, layer after layer
    with xsp.profile(levels=2, budget=1) as prof:
        model.predict(images, batch_size=8, verbose=0)  # as a graph
        model.fit(images, labels, batch_size=8, verbose=0)
    print(prof.trace)
    for name, evaluation in prof.groups.items():
        print(f"\n== {name}\n{evaluation}")


if __name__ == "__main__":
    main()
