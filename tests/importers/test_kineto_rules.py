"""What newer and odd files of torch.profiler hold: broken rules, archives, quotes, own rows."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from chrome import codes, event, kernel, launch, op, read, recording, row, trace, written

import xsp
from xsp.errors import TraceFormatError

COMPLETE = {
    "Collective name": "allreduce",
    "dtype": "Float",
    "In msg nelems": 4,
    "Out msg nelems": 4,
    "Group size": 2,
    "Seq": 17,
}


def wait(kind: str, at: float, duration: float = 1, **args: Any) -> dict[str, Any]:
    """Return a synchronization as devices are told of it."""
    args = {"device": 0, "stream": 7, "cuda_sync_kind": kind, **args}
    return event("cuda_sync", kind, at, duration, pid=0, tid=1_000_007, args=args)


BROKEN: dict[str, list[dict[str, Any]]] = {
    "kernels that begin before their launch: 1": [launch(1, 10), kernel(1, 5, 20)],
    "waits that name no event: 2": [wait("Stream Wait Event", 5), wait("Event Sync", 8)],
    "synchronizations that began while a kernel ran: 1": [
        launch(1, 0),
        kernel(1, 5, 20),
        wait("Stream Sync", 15),
    ],
    "waits for an event that nothing recorded before: 1": [
        launch(4, 50, name="cudaEventRecord"),
        wait("Stream Wait Event", 20, wait_on_cuda_event_record_corr_id=4),
    ],
    "collectives without size, type or group: 1": [op("record_param_comms", 0, 5, dtype="Float")],
    "sequence numbers of several backward operators: 1": [
        op(f"autograd::engine::evaluate_function: {name}", at, 5, **{"Sequence number": 3})
        for at, name in ((10, "AddBackward0"), (20, "MulBackward0"))
    ],
}


@pytest.mark.parametrize("said", BROKEN)
def test_broken_rules_of_the_validator_are_counted(tmp_path: Path, said: str) -> None:
    found = recording(tmp_path, [op("aten::mm", 0, 50), *BROKEN[said]])
    assert said in codes(found)["rules-broken"]


def test_a_file_that_keeps_the_rules_has_no_such_warning(tmp_path: Path) -> None:
    events = [
        op("record_param_comms", 0, 5, **COMPLETE),
        launch(1, 10),
        launch(4, 15, name="cudaEventRecord"),
        kernel(1, 20, 20),
        wait("Stream Wait Event", 20, wait_on_cuda_event_record_corr_id=4),
        wait("Stream Sync", 50),
    ]
    found = recording(tmp_path, events)
    assert "rules-broken" not in codes(found)
    assert row(found, "record_param_comms")["collective_sequence"] == 17


def test_a_wait_on_a_row_of_its_own_is_of_its_stream(tmp_path: Path) -> None:
    told = wait("Stream Sync", 5)
    del told["args"]["stream"]
    found = recording(tmp_path, [op("aten::mm", 0, 50), told])
    assert row(found, "synchronize stream")["stream"] == 7


def test_a_name_with_bare_quotes_costs_no_event(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json", [op("aten::mm", 0, 5), op("NAME", 10, 5)])
    path.write_text(path.read_text().replace("NAME", 'void k<"a", 1>("b")'))
    found = read(path)
    assert found.rows["name"].to_list() == ["aten::mm", 'void k<"a", 1>("b")']
    assert "damaged" not in codes(found)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_alone_in_an_archive_is_read(tmp_path: Path, packed: bool) -> None:
    inner = written(tmp_path / f"trace.json{'.gz' * packed}", [op("aten::mm", 0, 5)])
    with zipfile.ZipFile(tmp_path / "trace.zip", "w") as archive:
        archive.write(inner, f"run/{inner.name}")
        archive.writestr("__MACOSX/run/._trace", b"\0")
    assert xsp.load(tmp_path / "trace.zip").spans["name"].to_list()[-1] == "aten::mm"


def test_an_archive_of_several_files_says_what_to_do(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.json", "{}")
        archive.writestr("b.json", "{}")
    with pytest.raises(TraceFormatError, match="archive of 2 files"):
        xsp.load(tmp_path / "two.zip")
    (tmp_path / "cut.zip").write_bytes((tmp_path / "two.zip").read_bytes()[:60])
    with pytest.raises(TraceFormatError, match="damaged zip archive"):
        xsp.load(tmp_path / "cut.zip")


def test_the_batch_size_is_that_of_the_caller(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json", [op("aten::mm", 0, 1000)])
    told = xsp.analyses.model_information(xsp.load(path, batch=32))
    assert told.select("batch", "throughput_per_s").rows() == [(32, 32_000.0)]
    assert xsp.analyses.model_information(xsp.load(path))["batch"].to_list() == [None]
    with pytest.raises(ValueError, match="batch size is not positive"):
        xsp.load(path, batch=0)


def test_a_module_has_the_shape_that_its_first_operator_was_given(tmp_path: Path) -> None:
    def shaped(name: str, at: int, *shapes: list[int]) -> dict[str, Any]:
        dims = [*map(list, shapes)]
        return op(name, at, 5, **{"Input Dims": dims, "Input type": ["float"] * len(dims)})

    modules = [("Net_0", 0, 100), ("Embedding_0", 10, 10), ("Linear_0", 30, 20)]
    events = [
        *(event("python_function", f"nn.Module: {n}", at, lasting) for n, at, lasting in modules),
        shaped("aten::embedding", 12, [50_000, 8], [4, 16]),
        shaped("aten::linear", 32, [4, 16, 8], [32, 8]),
    ]
    found = recording(tmp_path, events)
    assert row(found, "Embedding")["input_shapes"] == [[4, 16]]
    assert row(found, "Linear")["input_shapes"] == [[4, 16, 8]]
    assert row(found, "Net")["input_shapes"] is None
    assert trace(found).root.latency_ns == 100_000


def test_samples_of_hardware_counters_are_counted(tmp_path: Path) -> None:
    sample = event("hardware_counters", "sm__cycles_active.avg", 5, 1, pid=0, tid=3)
    found = recording(tmp_path, [op("aten::mm", 0, 50), sample, {**sample, "ph": "C"}])
    assert "2 hardware_counters" in codes(found)["not-understood"]
