"""What torch.compile's Inductor says of its kernels: its modules' text in, operators out.

Inductor writes above the definition of a Triton kernel, and above each of its calls, which
nodes of the traced graph it stands for and which operators these were. It does so without
being asked, and the modules that it wrote stay loaded. (Its own mapping of kernels to
nodes, `trace.provenance_tracking_level`, has to be switched on before compiling.)
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

Source = tuple[str, str]  # operators and nodes; empty where it is not known which

_PREFIX = "triton_"
_LINE = re.compile(
    r"^ *# [\w ]*Source Nodes: \[(?P<nodes>.*)\], Original ATen: \[(?P<ops>.*)\]$"
    r"|^(?P<name>\w+) = async_compile\.triton\('(?P<kernel>\w+)'"
    r"|^ +(?P<called>\w+)\.run\(",
    re.MULTILINE,
)


def parse(text: str) -> dict[str, Source]:
    """Return what a generated module says of each Triton kernel in it.

    A kernel that is called for several nodes has none, as nothing on the device says
    which call it was.

    >>> parse('''
    ... # Topologically Sorted Source Nodes: [y], Original ATen: [aten.add, aten.relu]
    ... triton_poi_fused_add_relu_0 = async_compile.triton('triton_poi_fused_add_relu_0', ...)
    ... ''')
    {'triton_poi_fused_add_relu_0': ('aten.add, aten.relu', 'y')}
    """
    found: dict[str, Source] = {}
    kernels: dict[str, str] = {}  # what the module calls each, and its name on the device
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
    """Return what Inductor says of those of these kernels that it generated in this process.

    Models that were compiled one by one may have kernels of the same name: what they do
    not agree on is not known.
    """
    wanted = {name for name in names if name.startswith(_PREFIX)}
    found: dict[str, Source] = {}
    for path in _paths() if wanted else ():
        with contextlib.suppress(OSError):  # its cache may have been cleared
            for name, source in _read(path).items():
                if name in wanted:
                    found[name] = _agreed(found.get(name, source), source)
    return found


def _paths() -> Iterator[str]:
    """Yield the files of the generated modules; PyTorch is not imported for it."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    for module in list(getattr(cache, "modules", ())):
        if path := getattr(module, "__file__", None):
            yield path


@lru_cache(maxsize=1 << 12)
def _read(path: str) -> dict[str, Source]:
    # A file is named after a hash of what is in it, so that it is never another one.
    return parse(Path(path).read_text(encoding="utf-8", errors="replace"))


def _agreed(one: Source, other: Source) -> Source:
    ops, nodes = (mine if mine == theirs else "" for mine, theirs in zip(one, other, strict=True))
    return ops, nodes
