from __future__ import annotations

import hmac
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from xsp.record.session import environment


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


def test_the_description_is_json_and_has_what_matters() -> None:
    facts = json.loads(json.dumps(environment.describe_environment()))
    assert facts["python"] == platform.python_version()
    assert facts["cpu"]
    assert facts["memory_bytes"] > 1 << 20
    assert 0 < facts["usable_cores"] <= facts["logical_cores"]
    assert facts["versions"]["polars"]
    assert facts["versions"]["xsp"]
    assert "no-such-package" not in facts["versions"]


@pytest.mark.parametrize("path", ["etc/machine-id", "var/lib/dbus/machine-id"])
def test_a_machine_is_known_by_its_machine_id_which_is_not_told(tmp_path: Path, path: str) -> None:
    secret = "fdbf79e8af94cb7f9e8df36789187052"
    put(tmp_path, path, secret)
    made = environment.host_id(tmp_path)
    assert made == hmac.new(secret.encode(), b"xsp", "sha256").hexdigest()[:32]
    put(tmp_path, path, secret.replace("f", "e"))
    assert environment.host_id(tmp_path) != made


@pytest.mark.parametrize("content", [None, "", "uninitialized"])
def test_a_machine_without_an_id_has_one_made_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content is not None:
        put(tmp_path, "etc/machine-id", content)
    found = set()
    for name in ("one", "one", "other", ""):
        monkeypatch.setattr(platform, "node", lambda name=name: name)
        found.add(environment.host_id(tmp_path))
    assert len(found) == 3
    assert all(len(made) == 32 for made in found)


def test_describing_imports_no_framework() -> None:
    code = (
        "import sys; from xsp.record.session.environment import describe_environment;"
        "describe_environment();"
        "sys.exit('torch' in sys.modules or 'rich' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_framework_says_how_many_threads_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 7))
    assert environment.thread_count() == 7


def test_gpus_are_asked_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1, 143771 MiB'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    environment._gpus.cache_clear()
    try:
        (gpu,) = environment.describe_environment()["gpus"]
    finally:
        environment._gpus.cache_clear()
    assert gpu == {"name": "NVIDIA H200", "driver": "580.1", "memory": "143771 MiB"}


def test_an_nvidia_smi_that_fails_means_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    environment._gpus.cache_clear()
    try:
        assert environment.describe_environment()["gpus"] == []
    finally:
        environment._gpus.cache_clear()
