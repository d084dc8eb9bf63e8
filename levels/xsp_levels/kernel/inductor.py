"""Finds the operators of each Triton kernel in modules that torch.compile's Inductor generated.

Inductor writes a comment above the definition of a Triton kernel, and above each call of the
kernel: which nodes of the traced graph the kernel computes, and which operators the nodes
were. The comments are always written, and generated modules stay loaded. (Inductor's own
mapping of kernels to nodes, `trace.provenance_tracking_level`, has to be switched on before
compiling.)
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

Source = tuple[str, str]  # operators and nodes, each empty where unknown

_PREFIX = "triton_"
_LINE = re.compile(
    r"^ *# [\w ]*Source Nodes: \[(?P<nodes>.*)\], Original ATen: \[(?P<ops>.*)\]$"
    r"|^(?P<name>\w+) = async_compile\.triton\('(?P<kernel>\w+)'"
    r"|^ +(?P<called>\w+)\.run\(",
    re.MULTILINE,
)


def parse(text: str) -> dict[str, Source]:
    """Return the operators and nodes of each Triton kernel in a generated module.

    Of a kernel that is called for different nodes they are left empty: nothing on the
    device says which call launched the kernel.

    >>> parse('''
    ... # Topologically Sorted Source Nodes: [y], Original ATen: [aten.add, aten.relu]
    ... triton_poi_fused_add_relu_0 = async_compile.triton('triton_poi_fused_add_relu_0', ...)
    ... ''')
    {'triton_poi_fused_add_relu_0': ('aten.add, aten.relu', 'y')}
    """
    found: dict[str, Source] = {}
    kernels: dict[str, str] = {}  # name on the device, by the module's name of the kernel
    said: Source | None = None
    for line in _LINE.finditer(text):
        if line["ops"] is not None:
            said = line["ops"], line["nodes"]
            continue
        if line["name"]:
            kernels[line["name"]] = line["kernel"]
        kernel = kernels.get(line["name"] or line["called"])
        if said and kernel:
            found[kernel] = _agreed(found.get(kernel, said), said)
        said = None
    return found


def sources(names: Iterable[str]) -> dict[str, Source]:
    """Return operators and nodes of those kernels that Inductor generated in this process.

    Models that were compiled one by one may have kernels of the same name: operators or
    nodes that differ between them are left empty.
    """
    wanted = {name for name in names if name.startswith(_PREFIX)}
    found: dict[str, Source] = {}
    for path in _paths() if wanted else ():
        with contextlib.suppress(OSError):  # Inductor's cache may have been cleared
            for name, source in _read(path).items():
                if name in wanted:
                    found[name] = _agreed(found.get(name, source), source)
    return found


def _paths() -> Iterator[str]:
    """Yield the files of the generated modules, without importing PyTorch."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    for module in list(getattr(cache, "modules", ())):
        if path := getattr(module, "__file__", None):
            yield path


@lru_cache(maxsize=1 << 12)
def _read(path: str) -> dict[str, Source]:
    # A file is named after a hash of its content, so the content of a path never changes.
    return parse(Path(path).read_text(encoding="utf-8", errors="replace"))


def _agreed(one: Source, other: Source) -> Source:
    ops, nodes = (mine if mine == theirs else "" for mine, theirs in zip(one, other, strict=True))
    return ops, nodes
