"""Finds, examines or exports a target in a process of its own, before it is measured.

Files and libraries are imported for that, which the processes that measure may not need.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from xsp.measuring.target.part import attempt
from xsp.measuring.target.resolution import check, matching, prepare
from xsp.measuring.target.source import pytorch
from xsp.measuring.target.spec import SOURCES, Spec
from xsp.measuring.target.worker import FAILURE, Failure

_SPECS, _TEXTS, _FOUND = "specs.json", "texts.json", "found.json"
_SLOW = ("torchvision", "timm", "transformers")  # what lists their models imports PyTorch


def examine(specs: Sequence[Spec]) -> None:
    """Verify in a fresh process that a target is there and takes all these settings.

    Models are not built, and functions not called; a function's file is imported.

    Raises:
        UnknownTargetError: There is no such target, or it does not take some settings.
        TargetFailedError: The file of a function raised while it was imported.
        MeasurementError: A library or device that the target needs is missing, or the process
            ended.
    """
    with tempfile.TemporaryDirectory(prefix="xsp-") as name:
        _work(EXAMINE, specs, Path(name))


@dataclass(frozen=True, slots=True)
class Found:
    """The target that a text names.

    Attributes:
        targets: The targets.
        error: Why there are none; None where there are.
    """

    targets: tuple[str, ...] = ()
    error: str | None = None


def find(texts: Sequence[str]) -> list[Found]:
    """Return which targets each text stands for; libraries and files are imported elsewhere.

    Args:
        texts: `torchvision` (its classifiers), `timm:resnet*`, `keras`, `onnx:FOLDER`,
            `path.py:function` whose models are meant, or a target each.
    """
    places = [_place(text) for text in texts]
    found: dict[int, Found] = {}
    for place in dict.fromkeys(places):
        numbers = [number for number, one in enumerate(places) if one == place]
        chosen = [texts[number] for number in numbers]
        answers = _found_apart(chosen) if place else _found(chosen)
        found |= dict(zip(numbers, answers, strict=True))
    return [found[number] for number in range(len(texts))]


def _place(text: str) -> str:
    """Return in which process a text is looked up: empty for this one, which imports nothing."""
    source = text.partition(":")[0]
    if source in _SLOW:
        return "libraries"
    return "" if source in SOURCES else Spec(text).in_file[0]


def _found(texts: Sequence[str]) -> list[Found]:
    answers = []
    for text in texts:
        outcome = attempt(partial(matching, text))
        failed = isinstance(outcome, Failure)
        answers.append(Found(error=outcome.message) if failed else Found(outcome))
    return answers


def _found_apart(texts: Sequence[str]) -> list[Found]:
    with tempfile.TemporaryDirectory(prefix="xsp-") as name:
        folder = Path(name)
        (folder / _TEXTS).write_text(json.dumps(list(texts)), encoding="utf-8")
        failure = _failure(FIND, folder)
        if failure is not None:
            return [Found(error=failure.message)] * len(texts)
        answers = json.loads((folder / _FOUND).read_text(encoding="utf-8"))
    return [Found(tuple(targets), error) for targets, error in answers]


@contextmanager
def exported(spec: Spec) -> Iterator[Spec]:
    """Yield the specification of an ONNX file that PyTorch exported for a model's; others as is.

    The file is there for the `with` block.

    Raises:
        UnknownTargetError: There is no such target, or it does not take its settings.
        MeasurementError: A library is missing, or PyTorch cannot export the model.
    """
    if spec.runs_on != "onnxruntime" or spec.source == "onnx":
        yield spec
        return
    with tempfile.TemporaryDirectory(prefix="xsp-") as name:
        _work(EXPORT, [spec], Path(name))
        file = Path(name) / f"{spec.name}.onnx"
        yield Spec(f"onnx:{file}", batch=spec.batch, device=spec.device)


def _work(verb: str, specs: Sequence[Spec], folder: Path) -> None:
    """Look at specifications, or export them into the folder, in a process of its own."""
    told = json.dumps([spec.to_json() for spec in specs])
    (folder / _SPECS).write_text(told, encoding="utf-8")
    failure = _failure(verb, folder)
    if failure is not None:
        raise failure.error()


def _failure(verb: str, folder: Path) -> Failure | None:
    command = [sys.executable, "-P", "-m", "xsp.measuring.target", verb, str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    found = folder / FAILURE
    if found.exists():
        return Failure(**json.loads(found.read_text(encoding="utf-8")))
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-1000:]
        return Failure("died", f"its process ended with code {done.returncode}: {said}")
    return None


def main(verb: str, directory: str) -> int:
    """Examine or export the specifications in a folder, as the process that was started for it.

    Returns:
        The exit code: 0, or 1 after a failure, which is written to the folder.
    """
    folder = Path(directory)
    if verb == FIND:
        texts = json.loads((folder / _TEXTS).read_text(encoding="utf-8"))
        answers = [[found.targets, found.error] for found in _found(texts)]
        (folder / _FOUND).write_text(json.dumps(answers), encoding="utf-8")
        return 0
    for data in json.loads((folder / _SPECS).read_text(encoding="utf-8")):
        outcome = attempt(partial(_WORK[verb], Spec.from_json(data), folder))
        if isinstance(outcome, Failure):
            (folder / FAILURE).write_text(json.dumps(asdict(outcome)), encoding="utf-8")
            return 1
    return 0


def _export(spec: Spec, folder: Path) -> None:
    prepare(spec)
    pytorch.export(spec, folder / f"{spec.name}.onnx")


EXAMINE, EXPORT, FIND = "--examine", "--export", "--find"
_WORK = {EXAMINE: lambda spec, _: check(spec), EXPORT: _export}
