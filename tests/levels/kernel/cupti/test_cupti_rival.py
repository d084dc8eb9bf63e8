"""Other tools beside xsp: their clocks, their kinds of record, their subscriptions."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_cupti import FakeCupti
from fake_records import record
from visits import DEEPEST, NAME, K, now, played, recorded, work

from xsp.clock import SystemClock
from xsp.errors import ProviderError
from xsp_levels.framework.torch.provider import Torch
from xsp_levels.kernel.cupti.provider import Cupti


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    yield from played(monkeypatch)


@pytest.mark.parametrize("kinds", [(10,), (3, 5), (5, 4, 39), ()])
def test_kernels_of_another_profiler_are_not_taken_from_it(
    fake: FakeCupti, kinds: tuple[int, ...]
) -> None:
    """A profiler need not have subscribed: PyTorch's does not since 2.15."""
    fake.rival_kinds = kinds
    provider = Cupti()
    if {3, 10} & set(kinds):
        with pytest.raises(ProviderError, match=r"end torch\.profiler"):
            provider.start(SystemClock(), DEEPEST)
        assert fake.callbacks is None
    else:
        assert recorded(provider, fake).problems == ()


def test_while_the_users_profiler_of_pytorch_runs_cupti_is_left_to_it(fake: FakeCupti) -> None:
    """Older CUPTI does not tell what others have enabled."""
    provider = Cupti()
    with torch.autograd.profiler.profile(use_kineto=True):
        with pytest.raises(ProviderError, match=r"end torch\.profiler"):
            provider.start(SystemClock(), DEEPEST)
        assert fake.log == []
    assert recorded(provider, fake).problems == ()


def test_xsps_own_use_of_pytorchs_profiler_is_no_rival(fake: FakeCupti) -> None:
    operators, provider = Torch(), Cupti()
    operators.start(SystemClock(), DEEPEST)
    try:
        assert recorded(provider, fake).problems == ()
    finally:
        operators.stop()


def test_a_warning_of_cupti_ends_no_recording(fake: FakeCupti) -> None:
    fake.failing["cuptiActivityRegisterCallbacks"] = 34
    provider = Cupti()
    assert provider.spans(recorded(provider, fake, work(fake, 1))).height == 2


def test_another_clock_inside_cupti_is_noticed(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    early = now(fake) - 5_000_000_000
    fake.script = [[record(K.RUNTIME, start=early, end=early + 1, cbid=211)]]
    assert any("clock of its own" in problem for problem in provider.stop().problems)


def test_a_clock_that_was_set_meanwhile_is_said(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    fake.offset_ns += 1_000_000
    assert any("was set" in problem for problem in provider.stop().problems)


def test_a_clock_that_counts_ticks_places_kernels_as_well_as_any(
    fake: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a session of Kineto, which gives CUPTI the processor's counter."""

    def ticks() -> int:
        return (time.monotonic_ns() + 77) * 5 // 2

    monkeypatch.setattr(fake, "get_timestamp", ticks)
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    begin, call = time.monotonic_ns(), ticks()
    time.sleep(0.02)
    start = ticks()
    kernel = {"start": start, "end": start + 50_000, "queued": call}
    fake.script = [
        [
            record(K.RUNTIME, correlation_id=1, start=call, end=call + 2500, cbid=211),
            record(K.CONCURRENT_KERNEL, correlation_id=1, name=ctypes.addressof(NAME), **kernel),
        ]
    ]
    kept = provider.stop()
    assert kept.problems == ()
    launch, ran = provider.spans(kept).sort("start_ns").rows(named=True)
    assert abs(launch["start_ns"] - begin) < 50_000
    assert launch["uncertainty_ns"] < 50_000
    assert abs(ran["end_ns"] - ran["start_ns"] - 20_000) <= 2
    assert abs(ran["attr.queue_delay_ns"] - (ran["start_ns"] - launch["start_ns"])) <= 2


@pytest.mark.parametrize("moment", ["begins", "ends"])
def test_calls_while_recording_begins_or_ends_are_no_other_clock(
    fake: FakeCupti, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    name = {"begins": "activity_enable_and_dump", "ends": "activity_flush_all"}[moment]
    function, launches = getattr(fake, name), []

    def slowly(*args: Any) -> None:
        time.sleep(0.003)
        launches.append(record(K.RUNTIME, start=now(fake), end=now(fake), cbid=211))
        time.sleep(0.003)
        if moment == "ends":
            fake.script = [launches.copy()]
        function(*args)

    monkeypatch.setattr(fake, name, slowly)
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    del launches[:-2]  # those of the trial
    fake.script = [launches.copy()]
    if moment == "ends":
        launches.clear()
    assert provider.stop().problems == ()


@pytest.mark.parametrize(
    ("function", "status", "word"),
    [
        ("subscribe", 39, "torch.profiler"),
        ("activity_enable", 35, "NVreg_RestrictProfilingToAdminUsers"),
        ("activity_enable_and_dump", 15, "nvidia-smi"),
        ("cuptiActivityRegisterCallbacks", 14, "another profiler"),
    ],
)
def test_a_refusal_is_said_with_its_remedy_and_leaves_nothing(
    fake: FakeCupti, function: str, status: int, word: str
) -> None:
    fake.failing[function] = status
    provider = Cupti()
    with pytest.raises(ProviderError, match=word):
        provider.start(SystemClock(), DEEPEST)
    assert provider.spans(provider.stop()).height == 0
