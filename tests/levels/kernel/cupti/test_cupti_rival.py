"""Other tools beside xsp: their clocks, their kinds of record, their subscriptions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from fake_cupti import FakeCupti
from fake_records import record
from visits import DEEPEST, K, now, played, recorded

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
        assert recorded(provider, fake).warnings == ()


def test_while_the_users_profiler_of_pytorch_runs_cupti_is_left_to_it(fake: FakeCupti) -> None:
    """Older CUPTI does not tell what others have enabled."""
    provider = Cupti()
    with torch.autograd.profiler.profile(use_kineto=True):
        with pytest.raises(ProviderError, match=r"end torch\.profiler"):
            provider.start(SystemClock(), DEEPEST)
        assert fake.log == []
    assert recorded(provider, fake).warnings == ()


def test_xsps_own_use_of_pytorchs_profiler_is_no_rival(fake: FakeCupti) -> None:
    operators, provider = Torch(), Cupti()
    operators.start(SystemClock(), DEEPEST)
    try:
        assert recorded(provider, fake).warnings == ()
    finally:
        operators.stop()


def test_another_clock_inside_cupti_is_noticed(fake: FakeCupti) -> None:
    provider = Cupti()
    provider.start(SystemClock(), DEEPEST)
    early = now(fake) - 5_000_000_000
    fake.script = [[record(K.RUNTIME, start=early, end=early + 1, cbid=211)]]
    assert any("another tool changed its clock" in warning for warning in provider.stop().warnings)


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
