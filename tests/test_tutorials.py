"""The tutorials tell the truth: their commands run in order, and print what the pages say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
# A file that a page shows, or commands with words that the last of them prints.
STEP = re.compile(
    r"```\{code-block\} python\n:caption: (?P<file>[\w.]+)\n\n(?P<text>.*?)```"
    r"|```console\n(?P<commands>(?:\$ [^\n]*\n)+)```(?:\n\n<!-- prints: (?P<printed>.*?) -->)?",
    re.S,
)
LONG_AND_SHORT = ("--budget 20", "--budget 5")  # a test needs no narrow intervals


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    words[:1] = {"xsp": [sys.executable, "-m", "xsp"], "python": [sys.executable]}[words[0]]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "levels"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, (command, done.stderr[-2000:])
    return done.stdout + done.stderr


def pooled(source: str) -> str:
    """Return the script with each pooling before its ReLU, as the first tutorial asks for."""
    return re.sub(r"(    nn\.ReLU\(\),\n)(    nn\.MaxPool2d\(2\),\n)", r"\2\1", source)


def test_the_first_tutorial_shows_the_script_of_the_examples() -> None:
    page = (DOCS / "tutorial-first-profile.md").read_text("utf-8")
    shown = next(step["text"] for step in STEP.finditer(page) if step["file"] == "train.py")
    assert shown in (EXAMPLES / "train.py").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", ["tutorial-first-profile", "tutorial-faster-resnet", "tutorial-layer-to-kernel"]
)
def test_the_commands_of_a_tutorial_run_and_print_what_it_says(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="needs torchvision: pip install torchvision")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for step in STEP.finditer((DOCS / f"{name}.md").read_text("utf-8")):
        if step["file"]:
            (tmp_path / step["file"]).write_text(step["text"], encoding="utf-8")
            if step["file"] == "train.py":
                (tmp_path / "pooled.py").write_text(pooled(step["text"]), encoding="utf-8")
            continue
        printed = ""
        for line in step["commands"].splitlines():
            command = line.removeprefix("$ ").replace(*LONG_AND_SHORT)
            printed += run(command, tmp_path)
        for words in (step["printed"] or "").split(" | "):
            assert words in printed, (name, words, printed[-3000:])
