from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import xsp
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Records, Request
from xsp.provider.packing import pack, unpack
from xsp.provider.row import ROW_SCHEMA
from xsp.testing import only_providers
from xsp_levels.framework.torch.provider import Torch
from xsp_levels.library.onednn import switch as onednn_switch
from xsp_levels.library.onednn.line import parse_header
from xsp_levels.library.onednn.provider import ClockReading, OneDnn, OneDnnRecords
from xsp_levels.model import Model

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
if not torch.backends.mkldnn.is_available():
    pytest.skip("needs oneDNN: pip install torch, on an x86-64 CPU", allow_module_level=True)

DATA = Path(__file__).parents[3] / "data" / "onednn"
RECORDED = (DATA / "onednn-3.13-profile-timestamps.txt").read_bytes()
OFFSET = 1_795_225_185_000_000_000  # wall clock less monotonic, in the recording
CALLS = Request(frozenset({Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL}))


def recorded(**changes: Any) -> Records:
    data = OneDnnRecords(
        lines=RECORDED,
        header=parse_header(RECORDED),
        threads=2,
        readings=(ClockReading(900_000_000, OFFSET), ClockReading(1_900_000_000, OFFSET)),
    )
    return Records(dataclasses.replace(data, **changes))


def rows_of(**changes: Any) -> pl.DataFrame:
    return OneDnn().spans(recorded(**changes))


@pytest.fixture
def net() -> Any:
    """Two convolutions large enough for oneDNN."""
    torch.manual_seed(0)
    first, second = (torch.nn.Conv2d(width, 32, 3, padding=1) for width in (16, 32))
    return torch.nn.Sequential(first, torch.nn.ReLU(), second).eval()


@pytest.fixture
def images() -> Any:
    return torch.randn(4, 16, 32, 32, generator=torch.Generator().manual_seed(0))


def observed(net: Any, images: Any, provider: OneDnn) -> Records:
    provider.start(SystemClock(), CALLS)
    try:
        with torch.no_grad():
            net(images)
    finally:
        records = provider.stop()
    return records


def test_recorded_lines_become_rows_of_the_schema() -> None:
    rows = rows_of()
    assert list(rows.columns)[: len(ROW_SCHEMA)] == list(ROW_SCHEMA)
    assert set(rows["kind"]) == {"call"}
    assert rows["thread"].null_count() == rows.height
    first = rows.filter(pl.col("name") == "convolution").row(0, named=True)
    assert first["attr.library"] == "oneDNN 3.13.3"
    assert first["attr.implementation"] == "jit:avx512_core"
    assert first["attr.propagation"] == "forward_training"
    assert first["attr.algorithm"] == "alg:convolution_direct"
    assert first["attr.problem"] == "mb4_ic16oc32_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1"
    assert first["attr.formats"].startswith("src f32 aBcd16b, wei f32 ABcd16b16a, bia f32 a")
    assert first["attr.threads"] == 2
    assert first["attr.flops"] == 2 * 4 * 32 * 32 * 32 * 16 * 9
    assert first["attr.tensor_bytes"] == 4 * (4 * 16 * 1024 + 32 * 144 + 32 + 4 * 32 * 1024)


def test_a_clock_that_drifts_is_followed_from_end_to_end() -> None:
    readings = (ClockReading(949_884_000, OFFSET), ClockReading(1_049_884_000, OFFSET + 10_000))
    rows = rows_of(readings=readings)
    assert rows["start_ns"][0] == 949_884_500
    later = rows_of()["start_ns"] - rows["start_ns"]
    progress = (rows["start_ns"] - rows["start_ns"][0]) / 100_000_000
    assert ((later - 10_000 * progress.clip(0, 1)).abs() < 3).all()
    assert set(rows["uncertainty_ns"]) == {10_750}


def test_pytorchs_primitives_are_seen(
    net: Any, images: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    provider = OneDnn()
    os.write(1, b"before\n")
    before = SystemClock.now()
    records = observed(net, images, provider)
    after = SystemClock.now()
    os.write(1, b"after\n")
    rows = provider.spans(records)
    assert records.dropped == 0
    assert records.warnings == ()
    assert rows["name"].to_list().count("convolution") == 2
    assert rows["start_ns"].min() > before  # type: ignore[operator]
    assert rows["end_ns"].max() < after  # type: ignore[operator]
    assert rows["attr.library"][0].startswith("oneDNN 3.")
    assert capfd.readouterr().out == "before\nafter\n"


def test_what_the_user_made_the_default_is_no_hindrance(net: Any, images: Any) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        records = observed(net, images, OneDnn())
    finally:
        torch.set_default_dtype(torch.float32)
    assert OneDnn().spans(records).height


def test_nothing_is_printed_or_recorded_outside_of_a_visit(
    net: Any, images: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    observed(net, images, OneDnn())
    net(images)
    assert capfd.readouterr().out == ""
    assert onednn_switch.TIMESTAMP not in os.environ


def test_the_model_raising_leaves_nothing_behind(
    net: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError):
        observed(net, torch.randn(1, 3, 8, 8), OneDnn())
    net(torch.randn(4, 16, 32, 32))
    assert "verbose" not in capfd.readouterr().out


def test_calls_lie_in_their_operators_in_a_real_trace(net: Any, images: Any) -> None:
    with only_providers(Model(), Torch(), OneDnn()), torch.no_grad():
        trace = xsp.measure(net, images, levels=3, runs=3)
    trace.check()
    spans = trace.spans
    assert trace.metadata["levels"]["library"] == "measured"
    calls = spans.filter(pl.col("kind") == "call")
    above = calls.join(spans, left_on="parent_id", right_on="span_id", suffix="_above")
    assert calls.filter(pl.col("name") == "convolution").height == 2
    assert set(above["kind_above"]) == {"op"}
    assert set(above.filter(pl.col("name") == "convolution")["name_above"]) == {
        "aten::mkldnn_convolution"
    }
    assert set(above["thread"]) == set(above["thread_above"])
    assert {"call"} < {pass_["pass"] for pass_ in trace.metadata["passes"]}


def test_training_gives_backward_calls_too(net: Any, images: Any) -> None:
    provider = OneDnn()
    provider.start(SystemClock(), CALLS)
    net(images).sum().backward()
    rows = provider.spans(provider.stop())
    assert {"backward_data", "backward_weights"} <= set(rows["attr.propagation"])


SCRIPT = """
import sys, torch
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider.contract import Request
from xsp_levels.library.onednn.provider import OneDnn
torch.set_num_threads(1)
net = torch.nn.Conv2d(16, 32, 3, padding=1).eval()
images = torch.randn(4, 16, 32, 32)
provider = OneDnn()
def observe():
    provider.start(SystemClock(), Request(frozenset(Kind)))
    with torch.no_grad(): net(images)
    return provider.stop()
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["1", "profile_exec"])
def test_the_users_own_verbose_mode_goes_on(setting: str) -> None:
    code = """
        records = observe()
        print("visit over", len(provider.spans(records)))
        with torch.no_grad(): net(images)
        print(records.warnings[0], file=sys.stderr)
        """
    finished = run(code, ONEDNN_VERBOSE=setting)
    during, _, afterwards = finished.stdout.partition("visit over")
    calls = int(afterwards.split("\n")[0])
    assert during.count(",exec,cpu,convolution") == 0
    assert afterwards.count(",exec,cpu,convolution") == 1
    assert calls >= 3
    assert f"ONEDNN_VERBOSE={setting} is set" in finished.stderr


@pytest.mark.slow
def test_verbose_mode_that_was_switched_on_in_code_goes_on() -> None:
    code = """
        observe()
        with torch.backends.mkldnn.verbose(1):
            records = observe()
            print("visit over", len(provider.spans(records)))
            with torch.no_grad(): net(images)
        print("user's ends")
        later = observe()
        print("later", len(provider.spans(later)))
        print(records.warnings[0], later.warnings, file=sys.stderr)
        """
    finished = run(code)
    during, _, afterwards = finished.stdout.partition("visit over")
    afterwards, _, later = afterwards.partition("user's ends")
    assert during.count(",exec,cpu,convolution") == 0
    assert afterwards.count(",exec,cpu,convolution") == 1
    assert int(afterwards.split("\n")[0]) >= 3
    assert int(later.removeprefix("\nlater")) >= 3  # and nothing else is printed
    assert "was on already" in finished.stderr
    assert finished.stderr.endswith(" ()\n")


@pytest.mark.slow
def test_timestamps_that_were_off_before_are_told() -> None:
    code = """
        with torch.backends.mkldnn.verbose(1), torch.no_grad(): net(images)
        print("mine ends")
        records = observe()
        print(records.warnings[0], provider.unavailable(), file=sys.stderr)
        assert provider.spans(records).height == 0
        """
    finished = run(code)
    assert finished.stdout.endswith("mine ends\n")
    assert finished.stderr.count("ONEDNN_VERBOSE_TIMESTAMP=1") == 2


def test_a_build_without_verbose_mode_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = onednn_switch.OneDnnLibrary("Quiet", lambda level: True, lambda: None)
    monkeypatch.setattr(onednn_switch, "libraries", lambda: (silent,))
    provider = OneDnn()
    provider.start(SystemClock(), CALLS)
    assert "Quiet's oneDNN was built without its verbose mode" in provider.stop().warnings[0]
    assert provider.unavailable() == provider.stop().warnings[0]


def test_without_any_onednn_it_says_what_would_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_switch, "libraries", lambda: ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reason = OneDnn().unavailable()
    assert reason is not None
    assert "xsp[torch]" in reason


def test_records_are_kept_as_bytes_and_make_the_same_rows() -> None:
    provider, kept = OneDnn(), recorded()
    unpacked = unpack(provider, pack(provider, kept))
    assert (unpacked.dropped, unpacked.warnings) == (kept.dropped, kept.warnings)
    rows = provider.spans(kept)
    assert rows.height
    assert provider.spans(unpacked).equals(rows)
