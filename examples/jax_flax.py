"""Measure a Flax model that jax.jit compiles: layers and operators of the compiled program.

python examples/jax_flax.py
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

import xsp


class Net(nn.Module):
    """A network of two dense layers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the scores of ten classes."""
        x = nn.relu(nn.Dense(256, name="hidden")(x))
        return nn.Dense(10, name="scores")(x)


def main() -> None:
    """Measure the compiled model, and print its tree."""
    net = Net()
    images = jnp.ones((32, 784))
    weights = net.init(jax.random.key(0), images)
    predict = jax.jit(net.apply)
    # Weights are arguments: XLA computes with constants when it compiles.
    print(xsp.measure(predict, weights, images, levels=2, budget=1))


if __name__ == "__main__":
    main()
