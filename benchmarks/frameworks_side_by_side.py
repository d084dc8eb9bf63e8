"""ResNet-50 in four frameworks: where the time goes, by model, layer type and library primitive.

    python benchmarks/frameworks_side_by_side.py [FOLDER] [--batch N] [--budget SECONDS]

The model has random weights and runs on the CPU, in processes of its own for each framework:
PyTorch (torchvision), TensorFlow (Keras, as a graph), ONNX Runtime (exported from torchvision), and
JAX (Keras, jitted). Traces go to FOLDER, and `xsp compare` prints what differs between PyTorch and
each other one. Keras's ResNet-50 is that of the first paper; torchvision's strides in the 3 by 3
convolution (version 1.5), and so has 6 % more operations, and layers of other sizes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = {
    "pytorch": ["torchvision:resnet50"],
    "tensorflow": ["keras:ResNet50", "--framework", "tensorflow"],
    "onnxruntime": ["torchvision:resnet50", "--framework", "onnxruntime"],
    "jax": ["keras:ResNet50", "--framework", "jax"],
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where the traces go")
    parser.add_argument("--batch", default=8, type=int, help="images at once")
    parser.add_argument("--budget", default=60, type=float, help="seconds of measuring, each")
    return parser.parse_args()


def xsp(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "xsp", *words], check=True)


def main() -> None:
    asked = arguments()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="side-by-side-"))
    folder.mkdir(parents=True, exist_ok=True)
    setting = ["--batch", str(asked.batch), "--budget", str(asked.budget), "--levels", "3"]
    traces = []
    for name, target in TARGETS.items():
        traces.append(str(folder / f"{name}.xsp"))
        xsp("profile", *target, *setting, "--output", traces[-1])
    xsp("compare", *traces)


if __name__ == "__main__":
    main()
