"""A point of a sweep: a target with one value of each setting in, its names out."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from xsp.target import Spec, Value

_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 120  # characters of a file's name, which file systems limit to 255 bytes


@dataclass(frozen=True, slots=True)
class Point:
    """A target with one value of each setting.

    Attributes:
        spec: The target with its settings.
        threads: Threads of the framework and of its libraries; None: as they choose.
    """

    spec: Spec
    threads: int | None = None

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that were set or are known, as in the metadata of the point's trace."""
        settings = self.spec.settings
        return settings if self.threads is None else {"threads": self.threads, **settings}

    @property
    def key(self) -> str:
        """The settings as one text, the same for the same settings."""
        return json.dumps(self.settings, sort_keys=True)

    @property
    def file_name(self) -> str:
        """Name of the file of the point's trace: `resnet18.b8.t2.xsp`."""
        spec = self.spec
        marks = [f"b{spec.batch}"] if spec.batch else []
        marks += [f"t{self.threads}"] if self.threads else []
        marks += [f"{name}{value}" for name, value in spec.inputs]
        marks += [spec.framework] if spec.framework else []
        marks += [spec.precision] if spec.precision else []
        marks += ["compiled"] if spec.compiled else []
        marks += ["training"] if spec.train else []
        marks += [spec.device] if spec.device else []
        name = ".".join((spec.name, *marks))
        plain = _PLAIN.sub("_", name)[:_LONGEST]
        # Names that lost something may be equal, and their settings are not.
        tail = "" if plain == name else f".{hashlib.sha256(self.key.encode()).hexdigest()[:8]}"
        return f"{plain}{tail}.xsp"

    @property
    def common(self) -> str:
        """The settings without the batch, in words; empty where none was set."""
        spec = self.spec
        asked: dict[str, Value | None] = {"threads": self.threads, **dict(spec.inputs)}
        asked |= {"framework": spec.framework, "precision": spec.precision, "device": spec.device}
        words = [f"{name} {value}" for name, value in asked.items() if value is not None]
        if spec.compiled is not None:
            words.append("compiled" if spec.compiled else "eager")
        return ", ".join([*words, "training"] if spec.train else words)

    def __str__(self) -> str:
        """Return the settings in words: `batch 8, threads 2, compiled`."""
        batch = [] if self.spec.batch is None else [f"batch {self.spec.batch}"]
        return ", ".join([*batch, self.common] if self.common else batch) or "as it is"
