"""A real Jaeger for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jaeger_server import MISSING, JaegerServer

from xsp.show.cli import jaeger as program


@pytest.fixture(scope="session")
def _there_is_one() -> None:
    if program.find() is None:
        pytest.skip(MISSING)


@pytest.fixture(scope="session")
def jaeger(_there_is_one: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JaegerServer]:
    """One Jaeger for all tests that neither stop it nor count what it holds."""
    with JaegerServer(tmp_path_factory.mktemp("jaeger")) as server:
        yield server


@pytest.fixture
def own_jaeger(_there_is_one: None, tmp_path: Path) -> Iterator[JaegerServer]:
    """A Jaeger that the test may stop, kill and start again."""
    with JaegerServer(tmp_path) as server:
        yield server
