"""Connections: the address of a Ray cluster in, the module of Ray, connected and quiet, out."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xsp.errors import MeasurementError

_CLIENT = "ray://"
_ANSWER_S = 5.0
_PRINTS = "print_to_stdstream"


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster until the block ends.

    Args:
        address: Address of the cluster, `HOST:PORT`; None: the cluster that this machine is part
            of, or that RAY_ADDRESS names.

    Raises:
        MeasurementError: Ray is not installed, or no cluster answers.
    """
    ray = _ray()
    if address is not None and address.startswith(_CLIENT):
        raise MeasurementError(
            f"{address} is the address of a Ray client, which cannot receive results one by one: "
            "run xsp on a machine of the cluster, or by `ray job submit`"
        )
    with _silence():
        with _own_signals():
            _connect(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise MeasurementError(
            f"a cluster needs Ray: pip install 'xsp[ray]' ({error}); without --ray the zoo runs on "
            "this machine"
        ) from error
    return ray


def _connect(ray: Any, address: str | None) -> None:
    try:
        if address:
            host, _, port = address.rpartition(":")
            # Ray itself tries for a minute, and logs each attempt.
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address else "on this machine"
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise MeasurementError(
            f"no Ray cluster answers {where} ({said[0]}): start one with `ray start --head`, or "
            "give the address of one, as in --ray 10.0.0.1:6379"
        ) from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Undo what Ray does with SIGTERM, of which xsp makes an interruption."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep Ray from printing to standard output what its daemons write when a node is lost."""
    from ray._private import worker  # noqa: PLC0415  # no public name does that

    printing = getattr(worker, _PRINTS, None)
    setattr(worker, _PRINTS, _ignore)
    try:
        yield
    finally:
        setattr(worker, _PRINTS, printing)


def _ignore(*said: object, **how: object) -> None:
    """Print nothing."""
