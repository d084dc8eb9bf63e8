from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xsp.errors import XspError
from xsp.show.cli import jaeger

MakeProgram = Callable[[Path, str], Path]


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("XSP_JAEGER", "JAEGER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


@pytest.fixture
def make_program() -> MakeProgram:
    def make(path: Path, text: str = "") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return make


def test_where_there_is_no_jaeger_it_is_said_how_to_get_one() -> None:
    assert jaeger.find() is None
    with pytest.raises(XspError, match="docker compose up -d") as refusal:
        jaeger.run(print)
    for way in (f"Jaeger {jaeger.RELEASE}", "jaegertracing.io/download", "scripts/build-jaeger"):
        assert way in str(refusal.value)


def test_the_named_program_goes_before_the_path_and_the_path_before_what_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_program: MakeProgram
) -> None:
    built = make_program(tmp_path / "cache" / "xsp" / f"jaeger-{jaeger.RELEASE}" / "jaeger", "")
    assert jaeger.find() == built
    on_path = make_program(tmp_path / "bin" / "jaeger", "")
    assert jaeger.find() == on_path
    named = make_program(tmp_path / "else where" / "jaeger", "")
    monkeypatch.setenv("XSP_JAEGER", str(named))
    assert jaeger.find() == named
    by_name = make_program(tmp_path / "bin" / "jaeger-2", "")
    monkeypatch.setenv("XSP_JAEGER", "jaeger-2")
    assert jaeger.find() == by_name


@pytest.mark.parametrize("text", ["http", "-1", "65536", "1e3", "٣"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(XspError, match=r"XSP_JAEGER_UI_PORT .* not a port"):
        jaeger.UI.number({"XSP_JAEGER_UI_PORT": text})


def test_the_command_becomes_jaeger_with_the_shipped_configuration(
    tmp_path: Path, make_program: MakeProgram
) -> None:
    told = 'echo "ran with $*"; echo "data in $XSP_JAEGER_DATA"; exit 7'
    make_program(tmp_path / "bin" / "jaeger", told)
    ports = {port.variable: "0" for port in jaeger.PORTS}
    done = subprocess.run(
        [sys.executable, "-c", "from xsp.show.cli import jaeger; jaeger.run(print)"],
        env={**os.environ, **ports},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    greeting, ran = done.stdout.split("ran with ")
    assert "xsp export FILE --to http://127.0.0.1:" in greeting
    assert ran.splitlines()[0] == f"--config {jaeger.CONFIGURATION}"
    data = tmp_path / "share" / "xsp" / "jaeger"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_program_that_the_system_cannot_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "jaeger"
    broken.write_bytes(b"\x7fELF, but not really")
    broken.chmod(0o755)
    monkeypatch.setenv("XSP_JAEGER", str(broken))
    for port in jaeger.PORTS:
        monkeypatch.setenv(port.variable, "0")
    with pytest.raises(XspError, match="cannot be started"):
        jaeger.run(lambda line: None)


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_program: MakeProgram
) -> None:
    make_program(tmp_path / "bin" / "jaeger", "")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XSP_JAEGER_DATA", str(tmp_path / "file" / "below"))
    for port in jaeger.PORTS:
        monkeypatch.setenv(port.variable, "0")
    with pytest.raises(XspError, match="set XSP_JAEGER_DATA"):
        jaeger.run(lambda line: None)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_greeting_names_an_address_that_a_browser_can_open(host: str) -> None:
    said = "\n".join(jaeger.greeting({"JAEGER_LISTEN_HOST": host, "XSP_JAEGER_DATA": "/here"}))
    assert "http://127.0.0.1:16686" in said
    assert "http://127.0.0.1:4318" in said
    assert "/here" in said


@pytest.mark.parametrize(
    ("host", "open_to_all"),
    [("", False), ("localhost", False), ("[::1]", False), ("0.0.0.0", True), ("[::]", True)],
)
def test_the_greeting_warns_where_others_can_read_and_write(
    host: str, *, open_to_all: bool
) -> None:
    said = "\n".join(jaeger.greeting({"JAEGER_LISTEN_HOST": host, "XSP_JAEGER_DATA": "/here"}))
    assert (f"JAEGER_LISTEN_HOST is {host}: everybody" in said) == open_to_all
