"""The page "Write an importer": its package installs, and reads what the page says."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from xsp.importers import Source, trace_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "examples" / "importer"
PAGE = (ROOT / "docs" / "write-an-importer.md").read_text()

CALLS = """\
4711 1700000000.000100 execve("/bin/true", ["true"], 0x7ffd /* 9 vars */) = 0 <0.000400>
4711 1700000000.000600 read(3, "<0.5>\\n", 6) = 6 <0.000020>
4712 1700000000.000610 futex(0x7f, FUTEX_WAIT, 0, NULL <unfinished ...>
4712 1700000000.000900 <... futex resumed>) = 0 <0.000290>
4711 1700000000.001000 +++ exited with 0 +++
"""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    path = PACKAGE / "xsp_import_strace.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_page_shows_the_files_word_for_word() -> None:
    blocks = re.findall(r"```(?:toml|python)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert blocks[0] == (PACKAGE / "pyproject.toml").read_text()
    assert blocks[1] == (PACKAGE / "xsp_import_strace.py").read_text()


@pytest.mark.parametrize("page", ["write-an-importer.md", "import.md"])
def test_every_link_of_the_page_leads_somewhere(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert targets
    assert [one for one in targets if not (ROOT / "docs" / one).exists()] == []


def test_calls_become_spans_and_other_lines_are_counted(module: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "calls").write_text(CALLS)
    source = Source(tmp_path / "calls")
    assert module.Strace().recognizes(source)
    (recording,) = module.Strace().read(source)
    trace = trace_of(recording, "true")
    trace.check()
    assert trace.spans["path"].to_list() == ["true", "true/execve", "true/read"]
    assert trace.spans["latency_ns"].to_list() == [520_000, 400_000, 20_000]
    assert trace.metadata["began_unix_ns"] == 1_700_000_000_000_100_000
    assert [warning.code for warning in trace.warnings] == ["unread"]


def test_other_files_are_not_recognized(module: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("1700000000 read(me)\n")
    assert not module.Strace().recognizes(Source(tmp_path / "notes"))


def test_the_installed_importer_is_found(tmp_path: Path) -> None:
    facts = tmp_path / "xsp_import_strace-0.1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: xsp-import-strace\n")
    group = re.search(r'\[project.entry-points."(.*?)"\]\n(.*)', PAGE)
    assert group is not None
    entry = group[2].replace('"', "")
    (facts / "entry_points.txt").write_text(f"[{group[1]}]\n{entry}\n")
    name = "xsp_import_strace.py"
    (tmp_path / name).write_bytes((PACKAGE / name).read_bytes())
    (tmp_path / "calls").write_text(CALLS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "xsp", "show", "calls", "--json"],
        check=True,
        capture_output=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert json.loads(done.stdout)["metadata"]["imported"]["tool"] == "strace"
