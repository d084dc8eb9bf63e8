from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import Toy, ToyModel

import xsp
from xsp.errors import ExportError, TraceFormatError, UnknownTargetError
from xsp.level import Kind
from xsp.measuring.call import recording
from xsp.measuring.call.callable import interpret_session
from xsp.measuring.call.recording import Recording, record
from xsp.measuring.call.repeat import carry_out
from xsp.measuring.target.here import record_target
from xsp.measuring.target.spec import Spec
from xsp.provider.contract import Packable
from xsp.provider.watching import ModelCall
from xsp.reading.runs.build import build_trace
from xsp.record.session.plan import Plan
from xsp.record.session.recorder import Session
from xsp.record.session.selection import select
from xsp.record.session.settings import Settings, settings_of
from xsp.testing import FakeClock, FakeProvider, only_providers, replay
from xsp.trace.document import Trace
from xsp.warning import TraceWarning

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
nn: Any = torch.nn

SETTINGS = settings_of(3, runs=3)


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        with xsp.span("pool", level="model", kernel=(2, 3), size=2, note="mean"):
            y = torch.relu(self.conv(x)).mean((2, 3))
        return self.head(y)


def train(net: Net) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        net(torch.ones(1, 1, 8, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measured(function: Any, *args: Any) -> tuple[Recording, Trace]:
    """Record one measurement, and make its trace at once."""
    selection = select(SETTINGS.levels)
    session = Session(selection.providers)
    call = ModelCall(function, args, whole_model=isinstance(function, Net))
    carry_out(Plan(selection.passes, SETTINGS), session, call, lambda done: None)
    kept = recording.recording_of(
        session, levels=selection.levels, subject="Net", settings=SETTINGS
    )
    return kept, build_trace([interpret_session(session, selection, "Net")], SETTINGS)


@pytest.mark.parametrize("training", [False, True])
def test_a_recorded_trace_is_the_live_trace(tmp_path: Path, *, training: bool) -> None:
    net = Net().eval()
    kept, live = measured(train(net)) if training else measured(net, torch.ones(1, 1, 8, 8))
    played = replay(kept.save(tmp_path / "net.xsprec"))
    played.check()
    assert {"region", "layer", "op", "call"} <= set(live.spans["kind"])
    assert played.spans.equals(live.spans)
    assert played.typical_runs is not None
    assert live.typical_runs is not None
    assert played.typical_runs.equals(live.typical_runs)
    assert played.warnings == live.warnings
    for name in ("name", "levels", "passes", "plan", "began_unix_ns"):
        assert played.metadata[name] == live.metadata[name]


def test_the_manifest_says_what_is_inside(tmp_path: Path) -> None:
    kept = record(Net().eval(), torch.ones(1, 1, 8, 8), settings=settings_of(2, runs=1))
    path = kept.save(tmp_path / "net.xsprec")
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        inside = set(archive.namelist())
    assert (manifest["format"], manifest["xsp_version"]) == (recording.FORMAT, xsp.__version__)
    assert manifest["environment"]
    files = {kept["file"] for visit in manifest["visits"] for kept in visit["records"]}
    assert inside == files | {"manifest.json"}
    last = manifest["visits"][-1]
    assert last["kinds"] == []
    assert all(begin < end for begin, end in last["windows"])


def toy_recording() -> Recording:
    clock = FakeClock(10**9)
    toy = Toy(clock)
    settings = settings_of(2, runs=1)
    with only_providers(toy):
        selection = select(settings.levels)
    session = Session(selection.providers, clock)
    plan = Plan(selection.passes, settings)
    carry_out(plan, session, ModelCall(ToyModel(toy), (1,)), lambda done: None)
    return recording.recording_of(
        session, levels=selection.levels, subject="Toy", settings=settings
    )


def test_a_provider_that_cannot_pack_is_named_and_left_out(tmp_path: Path) -> None:
    kept = toy_recording()
    assert not isinstance(kept.providers[0], Packable)
    loaded = recording.load(kept.save(tmp_path / "toy.xsprec"), kept.providers)
    assert not any(visit.records for visit in loaded.visits)
    said = [warning for warning in loaded.warnings if warning.code == "not-kept"]
    assert len(said) == 1
    assert kept.providers[0].name in said[0].message


def test_a_provider_that_is_missing_here_is_named(tmp_path: Path) -> None:
    path = toy_recording().save(tmp_path / "toy.xsprec")
    with pytest.raises(TraceFormatError, match="is not installed"):
        recording.load(path, [FakeProvider(FakeClock(), [Kind.OP], name="other")])


@pytest.mark.parametrize("damage", ["no file", "no zip", "no manifest", "other format", "cut"])
def test_what_is_no_recording_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "net.xsprec"
    if damage == "no zip":
        path.write_bytes(b"nothing")
    elif damage == "cut":
        kept = record(Net().eval(), torch.ones(1, 1, 8, 8), settings=settings_of(2, runs=1))
        path.write_bytes(kept.save(path).read_bytes()[:-400])
    elif damage != "no file":
        with zipfile.ZipFile(path, "w") as archive:
            name = "manifest.json" if damage == "other format" else "other.json"
            archive.writestr(name, '{"format": 99}')
    with pytest.raises(TraceFormatError, match=r"xsp record makes one"):
        recording.load(path)


def test_a_recording_says_what_it_lacks(tmp_path: Path) -> None:
    kept = replace(
        toy_recording(),
        levels={"model": "measured", "kernel": "there is no NVIDIA driver"},
        warnings=(TraceWarning("provider", "a thread was not seen"),),
    )
    first, second, third = recording.warning_sentences(kept.save(tmp_path / "toy.xsprec"))
    assert first == "the kernel level is left out: there is no NVIDIA driver"
    assert second == "a thread was not seen"
    assert kept.providers[0].name in third


def test_what_providers_could_not_record_is_said(tmp_path: Path) -> None:
    kept = record(Net().eval(), torch.ones(1, 1, 8, 8), settings=settings_of(2, runs=1))
    visit = next(visit for visit in kept.visits if visit.records)
    provider, records = visit.records[0]
    told = replace(records, warnings=("operators were not recorded",))
    kept = replace(kept, visits=(replace(visit, records=((provider, told),)),), warnings=())
    assert recording.warning_sentences(kept.save(tmp_path / "a.xsprec")) == [
        "operators were not recorded"
    ]


def test_damaged_records_are_refused_with_the_files_name(tmp_path: Path) -> None:
    kept = record(Net().eval(), torch.ones(1, 1, 8, 8), settings=settings_of(2, runs=1))
    whole, damaged = kept.save(tmp_path / "net.xsprec"), tmp_path / "damaged.xsprec"
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content[:30] if name.endswith("torch") else content)
    with pytest.raises(TraceFormatError, match=r"damaged\.xsprec: .* record again"):
        recording.load(damaged)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="there is no folder"):
        toy_recording().save(tmp_path / "missing" / "toy.xsprec")
    assert not list(tmp_path.iterdir())


def test_a_target_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "predict.py"
    path.write_text("import xsp\ndef run():\n    with xsp.span('part'):\n        sum(range(99))\n")
    settings = Settings(levels=settings_of(1).levels, runs=1)
    trace = record_target(Spec(f"{path}:run"), settings).trace()
    assert "part" in trace.spans["name"].to_list()
    with pytest.raises(UnknownTargetError):
        record_target(Spec(f"{path}:missing"), settings)
