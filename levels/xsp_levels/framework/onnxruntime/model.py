"""Finds the model that a session was made from, and the model's name for people."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xsp.errors import ProviderError

_NAMELESS = ("", "main_graph", "main", "torch_jit", "torch-jit-export", "tf2onnx", "graph")


def model_name(session: Any) -> str:
    """Return the name of a session's model for people: of its file, else of its graph."""
    path = getattr(session, "_model_path", None)
    if path:
        return Path(str(path)).stem
    graph = str(session.get_modelmeta().graph_name)
    return "model" if graph in _NAMELESS else graph


def model_source(session: Any) -> str | bytes:
    """Return the file that a session was made from, or its bytes.

    Raises:
        ProviderError: Neither is there any more.
    """
    path, content = getattr(session, "_model_path", None), getattr(session, "_model_bytes", None)
    if content:
        return bytes(content)
    if not path:
        raise ProviderError("its session keeps neither its file nor its bytes")
    if not Path(str(path)).is_file():
        raise ProviderError(f"its file {path} is there no more")
    return str(path)


@contextlib.contextmanager
def model_content(source: str | bytes) -> Iterator[memoryview]:
    """Show the bytes of a model, which are not read before they are asked for."""
    if isinstance(source, bytes):
        yield memoryview(source)
        return
    with (
        open(source, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        yield content
