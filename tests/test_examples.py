"""The examples of the other frameworks run, and print the layers that they have."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "library", "printed"),
    [
        ("keras_predict", "keras", ("net", "convolution", "pooling", "classes", "training step")),
        ("onnxruntime_session", "onnxruntime", ("layers.0", "MatMul", "Tanh")),
        ("jax_flax", "flax", ("hidden", "scores")),
        ("fastapi_server", "fastapi", ("GET /digits/{seed}", "load image", "Linear", "awaiting")),
    ],
)
def test_an_example_prints_the_tree_of_its_model(
    name: str, library: str, printed: tuple[str, ...]
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}: pip install {library}")
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for words in printed:
        assert words in done.stdout
