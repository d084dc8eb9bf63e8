"""Signals to a rank: the script ends by them, its forks as without xsp, and handlers come back."""

from __future__ import annotations

import os
import signal
import time

import pytest

from xsp.measuring.rank import Company
from xsp.record.rank import Identity


@pytest.fixture
def company() -> Company:
    return Company(Identity(1, 2))


def test_the_launchers_signal_ends_the_script_and_then_only_makes_xsp_hurry(
    company: Company,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with company.watching_signals():
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
        company.script_ended()
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert company.terminated
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_of_the_program_ends_by_a_signal_as_without_xsp(company: Company) -> None:
    ready, tell = os.pipe()
    with company.watching_signals():
        child = os.fork()
        if not child:
            try:
                os.write(tell, b"1")
                time.sleep(10)
            finally:
                os._exit(0)
        os.read(ready, 1)  # before that a signal may get lost in the fork itself
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    for end in (ready, tell):
        os.close(end)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM
