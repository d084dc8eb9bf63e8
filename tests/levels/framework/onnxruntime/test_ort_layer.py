"""The layers of nodes of ONNX graphs, also of nodes that ONNX Runtime fuses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from onnx_models import branches, dense, residual

from xsp_levels.framework.onnxruntime.graph import Graph, Node, Weight, read_graph
from xsp_levels.framework.onnxruntime.layer import Layer, find_layers, layer_path, origins


def test_a_graph_is_read_with_its_weights_sizes() -> None:
    graph = read_graph(residual())
    assert [node.op_type for node in graph.nodes] == ["Conv", "Relu", "Conv", "Add", "Relu"]
    assert graph.nodes[3].inputs == ("c2", "r1")
    assert graph.inputs == {"x"}
    assert {name: each.nbytes for name, each in graph.weights.items()} == {
        "w1": 9216,
        "w2": 9216,
        "b": 64,
    }


def outcome(content: bytes) -> str:
    """Return why bytes cannot be read; nothing if they can."""
    try:
        read_graph(content)
    except ValueError as error:
        return str(error)
    return ""


@given(st.binary(max_size=200))
def test_what_is_no_model_is_refused_or_has_no_nodes(content: bytes) -> None:
    assert outcome(content) in ("", "not a model in ONNX's format")


@given(st.data())
def test_a_model_cut_short_is_refused_or_read_so_far(data: st.DataObject) -> None:
    content = branches()
    cut = data.draw(st.integers(0, len(content) - 1))
    assert outcome(content[:cut]) in ("", "not a model in ONNX's format")


def test_a_node_in_blocks_is_the_convolution_with_what_was_fused_into_it() -> None:
    model = read_graph(residual())
    optimized = Graph(
        [
            Node("r1_nchwc", "Conv", ("x", "reorder", "b"), ("t0",)),
            Node("c2_nchwc", "Conv", ("t0", "t1", "b", "t0"), ("t2",)),
            Node("ReorderOutput", "ReorderOutput", ("t2",), ("y",)),
        ],
        {"x"},
    )
    layers = find_layers(model, optimized)
    first, second = layers.nodes["r1_nchwc"], layers.nodes["c2_nchwc"]
    assert first.layers == ("block", "conv1")
    assert first.fused_layers == ("block.relu",)
    assert first.sources == ("Conv", "Relu")
    assert second.layers == ("block", "conv2")
    assert second.fused_layers == ("block.relu_1",)
    assert second.sources == ("Conv", "Add", "Relu")


def test_a_new_node_between_two_others_is_in_the_layer_of_the_one_that_uses_it() -> None:
    model = read_graph(dense())
    optimized = Graph(
        [
            Node("in", "Reshape", ("x", "shape"), ("flat",)),
            Node("/fc/MatMul/Fused", "Gemm", ("flat", "w"), ("product",)),
            Node("out", "Reshape", ("product", "back"), ("m",)),
            Node("/act/Sigmoid", "Sigmoid", ("m",), ("y",)),
        ],
        {"x"},
    )
    nodes = find_layers(model, optimized).nodes
    assert {name: each.layers for name, each in nodes.items()} == {
        "in": ("fc",),
        "/fc/MatMul/Fused": ("fc",),
        "out": ("fc",),
        "/act/Sigmoid": ("act",),
    }


def test_layers_of_the_newer_exporter_are_in_the_metadata() -> None:
    node = Node(
        "node_conv2d",
        "Conv",
        ("x", "w"),
        ("y",),
        {
            "pkg.torch.onnx.name_scopes": "['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']",
            "pkg.torch.onnx.class_hierarchy": (
                "['m.ResNet', 'n.Sequential', 'm.BasicBlock', 'n.Conv2d', 'aten.conv2d.default']"
            ),
        },
    )
    assert layer_path(node) == ("layer1", "0", "conv1")
    found = find_layers(Graph([node], {"x"}, {"w": Weight("float32", (3,), 12)}), None)
    assert found.layers[-1] == Layer(("layer1", "0", "conv1"), "Conv2d", 12)
    assert found.layers[0] == Layer(("layer1",), "Sequential", 12)


def test_a_weight_counts_once_in_a_layer_and_through_identities() -> None:
    nodes = [
        Node("Identity_0", "Identity", ("b",), ("b2",)),
        Node("/a/Add", "Add", ("x", "b"), ("p",)),
        Node("/a/Add_1", "Add", ("p", "b2"), ("y",)),
    ]
    (layer,) = find_layers(Graph(nodes, {"x"}, {"b": Weight("float32", (16,), 64)}), None).layers
    assert layer == Layer(("a",), None, 64)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Return any graph; the values of two such graphs have some names in common."""
    values, nodes = ["x", "w", ""], []
    for at in range(draw(st.integers(0, 8))):
        inputs = draw(st.lists(st.sampled_from(values), max_size=4))
        outputs = draw(st.lists(st.sampled_from([f"v{at}", f"t{at}", ""]), max_size=2))
        kind = draw(st.sampled_from(["Conv", "Add", "Relu", "ReorderInput", "Shape"]))
        name = draw(st.sampled_from([f"/l/n{at}", f"v{at}_nchwc", f"/l/n{at}/Fused", ""]))
        nodes.append(Node(name, kind, tuple(inputs), tuple(outputs)))
        values += outputs
    return Graph(nodes, {"x"}, {"w": Weight("float32", (2,), 8)})


@given(graphs(), graphs())
def test_whatever_became_of_a_graph_its_nodes_come_from_the_model(
    model: Graph, optimized: Graph
) -> None:
    found = origins(model, optimized)
    assert found.keys() <= {node.name for node in optimized.nodes}
    assert all(node in model.nodes for nodes in found.values() for node in nodes)
    assert find_layers(model, optimized).nodes.keys() == {
        node.name for node in optimized.nodes if node.name
    }
