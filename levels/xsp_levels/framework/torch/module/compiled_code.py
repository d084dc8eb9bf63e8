"""Source of a module that torch.compile's Inductor generated in; the calls that it makes out.

Above the call of a library Inductor writes the nodes of the traced graph that it stands for, in
their order. The last one is the call itself; those before it computed what the call is given, and
had no memory of their own until then, so that the kernel that wrote this memory computed them.
Above the call of a C++ kernel nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile(
    r"^ +(?P<inputs>\w+(?:, \w+)*),? = args$"
    r"|^ +# Topologically Sorted Source Nodes: \[(?P<nodes>[^]]*)\]"
    r"|^ +(?:\w+ = )?(?:extern_kernels|(?:torch\.ops\.)?(?P<space>\w+))"
    r"\.(?P<library>\w+)(?:\.\w+)?\((?P<operands>.*)\)$"
    r"|^(?P<kernel>cpp_\w+) = async_compile\.cpp_pybinding\(\[(?P<types>[^]]*)\]"
    r"|^ +(?P<called>cpp_\w+)\((?P<given>.*)\)$"
    r"|^ +return \((?P<outputs>(?:\w+, )+)\)$",
    re.MULTILINE,
)


@dataclass(slots=True)
class Call:
    """A call of a C++ kernel, or of a library.

    Attributes:
        name: What the profiler calls it: `cpp_fused_relu_0`, `aten::addmm`.
        inputs: Positions of those inputs of the graph that it is given.
        node: Name of the traced node that the call of a library is; None of a kernel.
        nodes: Names of traced nodes that a kernel is known to compute.
        outputs: Positions of those outputs of the graph that a kernel wrote last.
    """

    name: str
    inputs: tuple[int, ...]
    node: str | None
    nodes: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """A generated module: how many inputs and outputs its graph has, and its calls in order."""

    inputs: int
    outputs: int
    calls: tuple[Call, ...]


def parse(text: str) -> Code:
    """Return what a generated module calls.

    >>> code = parse('''
    ... cpp_fused_gelu_0 = async_compile.cpp_pybinding(['const float*', 'float*'], ...
    ...     arg0_1, arg1_1 = args
    ...     cpp_fused_gelu_0(arg0_1, buf0)
    ...     # Topologically Sorted Source Nodes: [gelu, linear], Original ATen: [aten.gelu, aten.mm]
    ...     extern_kernels.mm(buf0, arg1_1, out=buf1)
    ... ''')
    >>> [(call.name, call.inputs, call.node, call.nodes) for call in code.calls]
    [('cpp_fused_gelu_0', (0,), None, ('gelu',)), ('aten::mm', (1,), 'linear', ())]
    """
    inputs: tuple[str, ...] = ()
    outputs: list[str] = []
    writes: dict[str, list[bool]] = {}  # of each kernel, which of its operands it writes
    wrote: dict[str, Call] = {}  # the kernel that wrote a buffer last
    calls: list[Call] = []
    said: list[str] = []
    for line in _LINE.finditer(text):
        if line["inputs"]:
            inputs = tuple(line["inputs"].split(", "))
        elif line["nodes"] is not None:
            said = line["nodes"].split(", ")
        elif line["kernel"]:
            types = re.findall(r"'([^']*)'", line["types"])
            writes[line["kernel"]] = ["*" in each and "const" not in each for each in types]
        elif line["called"]:
            given = line["given"].split(", ")
            calls.append(Call(line["called"], tuple(_places(inputs, given)), None))
            written = writes.get(line["called"], [])
            if len(written) == len(given):
                wrote |= {name: calls[-1] for name, is_ in zip(given, written, strict=True) if is_}
        elif said:
            given = re.findall(r"\w+", line["operands"])
            name = f"{line['space'] or 'aten'}::{line['library']}"
            calls.append(Call(name, tuple(_places(inputs, given)), said[-1]))
            kernels = {id(wrote[name]): wrote[name] for name in given if name in wrote}
            if len(kernels) == 1:
                (kernel,) = kernels.values()
                kernel.nodes += tuple(said[:-1])
            said = []
        elif line["outputs"]:
            outputs = line["outputs"].removesuffix(", ").split(", ")
            for place, name in enumerate(outputs):
                if name in wrote:
                    wrote[name].outputs += (place,)
    return Code(len(inputs), len(outputs), tuple(calls))


def _places(inputs: tuple[str, ...], given: list[str]) -> Iterator[int]:
    return (place for place, name in enumerate(inputs) if name in given)
