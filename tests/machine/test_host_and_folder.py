from __future__ import annotations

from pathlib import Path

import pytest

from xsp import machine


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.255.0.9", True),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_loopback_is_told_by_the_address_and_not_by_how_it_is_written(
    host: str, *, here: bool
) -> None:
    assert machine.is_loopback(host) == here


def test_folders_are_where_the_user_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in (
        ("XDG_STATE_HOME", machine.state_folder),
        ("XDG_DATA_HOME", machine.data_folder),
        ("XDG_CACHE_HOME", machine.cache_folder),
    ):
        monkeypatch.setenv(name, "/elsewhere")
        assert folder() == Path("/elsewhere/xsp")
