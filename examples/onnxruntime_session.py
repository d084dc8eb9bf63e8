"""Measure the run of an ONNX Runtime session, node by node.

python examples/onnxruntime_session.py
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import xsp


def network(width: int, layers: int) -> bytes:
    """Return an ONNX model of fully connected layers, with the names that exporters give nodes."""
    numbers = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number in range(layers):
        made, weight = f"made{number}", f"weight{number}"
        value = numbers.standard_normal((width, width)).astype(np.float32)
        weights.append(numpy_helper.from_array(value, weight))
        scope = f"/layers.{number}"
        nodes.append(helper.make_node("MatMul", [last, weight], [made], name=f"{scope}/MatMul"))
        last = f"x{number}"
        nodes.append(helper.make_node("Tanh", [made], [last], name=f"{scope}/Tanh"))
    ends = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [8, width]) for each in "xy"]
    nodes.append(helper.make_node("Identity", [last], ["y"], name="/Identity"))
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], weights)
    opset = helper.make_opsetid("", 17)
    model: bytes = helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()
    return model


def main() -> None:
    """Measure a session's run, and print its tree."""
    session = ort.InferenceSession(network(256, 3), providers=["CPUExecutionProvider"])
    inputs = {"x": np.ones((8, 256), np.float32)}
    print(xsp.measure(session.run, None, inputs, levels=2, budget=1))


if __name__ == "__main__":
    main()
