from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "build-jaeger"
RELEASE = "2.13.0"

# Stands in for Go: tells a version, and makes a program out of nothing.
GO = """#!/bin/sh
case "$1 $2" in
  "env GOVERSION") echo {version} ;;
  "list -m") echo {source} ;;
  build*) while [ "$1" != -o ]; do shift; done; {build} ;;
esac
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "source").mkdir()

    def run(
        *arguments: str, go: str | None = "go1.26.8", build: str = 'echo built >"$2"'
    ) -> subprocess.CompletedProcess[str]:
        tools = tmp_path / "tools"
        tools.mkdir(exist_ok=True)
        for name in ("dirname", "basename", "sort", "head", "mkdir", "mktemp", "mv", "chmod", "rm"):
            found = shutil.which(name)
            assert found is not None
            (tools / name).unlink(missing_ok=True)
            (tools / name).symlink_to(found)
        if go is not None:
            text = GO.format(version=go, source=tmp_path / "source", build=build)
            (tools / "go").write_text(text)
            (tools / "go").chmod(0o755)
        bash = shutil.which("bash")
        assert bash is not None
        return subprocess.run(
            [bash, str(SCRIPT), *arguments],
            env={"PATH": str(tools), "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_it_is_built_where_xsp_looks_for_it(run: Run, tmp_path: Path) -> None:
    done = run()
    built = tmp_path / "home" / ".cache" / "xsp" / f"jaeger-{RELEASE}" / "jaeger"
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(built)
    assert built.read_text() == "built\n"
    assert os.access(built, os.X_OK)


def test_without_go_it_is_said_what_to_do(run: Run) -> None:
    done = run(go=None)
    assert done.returncode == 1
    assert "there is no go on the PATH" in done.stderr
    assert "docker compose up -d" in done.stderr


@pytest.mark.parametrize("version", ["go1.9", "go1.22.12", "go1.24.5"])
def test_a_go_that_is_too_old_is_named(run: Run, version: str) -> None:
    done = run(go=version)
    assert done.returncode == 1
    assert f"this is {version.removeprefix('go')}" in done.stderr


def test_a_build_that_fails_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    done = run("out/jaeger", build='echo half >"$2"; exit 3')
    assert done.returncode == 3
    assert list((tmp_path / "out").iterdir()) == []
