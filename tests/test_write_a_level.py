"""The page "Write a level": its package installs, and its level does what the page says."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from xsp import measure
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Records, Request
from xsp.testing import only_providers

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "examples" / "level"
PAGE = (ROOT / "docs" / "write-a-level.md").read_text()

SCRIPT = """
    import json, zlib
    import polars as pl
    import xsp

    data = bytes(100_000)

    def work():
        with xsp.span("pack"):
            return zlib.decompress(zlib.compress(data))

    trace = xsp.measure(work, levels=("model", "library"), budget=1, runs=3)
    trace.check()
    calls = trace.spans.filter(pl.col("kind") == "call")
    fields = calls["attributes"].struct
    print(json.dumps({
        "paths": calls["path"].to_list(),
        "given": fields.field("given_bytes").to_list(),
        "levels": dict(trace.metadata["levels"]),
        "warnings": [warning.message for warning in trace.warnings if warning.code == "provider"],
        "left": zlib.compress.__module__,
    }))
"""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    path = PACKAGE / "xsp_level_zlib.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, installed by pip; or laid out as pip would where it cannot build."""
    target = tmp_path_factory.mktemp("installed")
    if importlib.util.find_spec("hatchling") and importlib.util.find_spec("pip"):
        source = tmp_path_factory.mktemp("source") / "level"
        source.mkdir()
        for file in PACKAGE.iterdir():
            if file.is_file():
                (source / file.name).write_bytes(file.read_bytes())
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
        subprocess.run([*command, str(source)], check=True, capture_output=True, timeout=120)
        return target
    facts = target / "xsp_level_zlib-0.1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: xsp-level-zlib\nVersion: 0.1.0\n")
    (facts / "entry_points.txt").write_text("[xsp.levels]\nzlib = xsp_level_zlib:Zlib\n")
    name = "xsp_level_zlib.py"
    (target / name).write_bytes((PACKAGE / name).read_bytes())
    return target


def run(installed: Path, *command: str) -> str:
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, *command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        cwd=installed,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    ).stdout


def test_the_page_shows_the_files_word_for_word() -> None:
    blocks = re.findall(r"```(?:toml|python)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert blocks[0] == (PACKAGE / "pyproject.toml").read_text()
    assert blocks[1] == (PACKAGE / "xsp_level_zlib.py").read_text()


def test_every_link_of_the_page_leads_somewhere() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", PAGE)
    assert targets
    assert [one for one in targets if not (ROOT / "docs" / one).exists()] == []


def test_doctor_lists_the_installed_level(installed: Path) -> None:
    found = json.loads(run(installed, "-m", "xsp", "doctor", "--json"))
    (line,) = [one for one in found["providers"] if one["name"] == "zlib"]
    assert line == {"name": "zlib", "level": "library", "kinds": ["call"], "unavailable": None}


@pytest.mark.slow
def test_installed_level_appears_in_the_trace(installed: Path) -> None:
    found = json.loads(run(installed, "-c", textwrap.dedent(SCRIPT)))
    assert [path.split("/")[-2:] for path in found["paths"]] == [
        ["pack", "compress"],
        ["pack", "decompress"],
    ]
    assert found["given"][0] == 100_000
    assert found["levels"] == {"model": "measured", "library": "measured"}
    assert found["warnings"] == []
    assert found["left"] == "zlib"


def test_what_recording_costs_is_taken_out(module: ModuleType) -> None:
    waste_ns = 1_000_000

    class SlowZlib(module.Zlib):  # type: ignore[name-defined,misc]
        def start(self, clock: SystemClock, request: Request) -> None:
            super().start(clock, request)
            if Kind.CALL not in request.kinds:
                return
            quick = zlib.compress

            def slow(data: bytes) -> bytes:
                until = clock.now() + waste_ns
                while clock.now() < until:
                    pass
                return quick(data)

            zlib.compress = slow  # type: ignore[assignment]

    data = bytes(1_000)

    def work() -> None:
        for _ in range(4):
            zlib.compress(data)

    original = zlib.compress
    with only_providers(SlowZlib()):
        trace = measure(work, levels=("model", "library"), budget=2, runs=5)
    assert zlib.compress is original
    root, *calls = trace.spans.to_dicts()
    assert [call["name"] for call in calls] == ["compress"] * 4
    # Four times as much is wasted in every step that is recorded, noise apart.
    assert root["latency_ns"] < 2 * waste_ns < root["overhead_ns"]


def test_functions_are_put_back_and_other_passes_leave_them_alone(module: ModuleType) -> None:
    provider, original = module.Zlib(), zlib.compress
    provider.start(SystemClock(), Request(frozenset({Kind.OP})))
    assert zlib.compress is original
    assert provider.spans(provider.stop()).height == 0
    provider.start(SystemClock(), Request(frozenset({Kind.CALL})))
    assert zlib.compress is not original
    with pytest.raises(zlib.error):
        zlib.decompress(b"no such stream")
    zlib.compress(b"abc")
    kept = provider.stop()
    assert zlib.compress is original
    rows = provider.spans(Records(kept.data))
    assert rows["name"].to_list() == ["compress"]
