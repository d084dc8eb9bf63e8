from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import samples
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_server import Server, free_port, serving

import xsp
from xsp.export import Delivery
from xsp.show.cli import app as cli
from xsp.show.cli import exit_code
from xsp.show.cli import export as command
from xsp.show.export import destination
from xsp.testing import replay

Said = pytest.CaptureFixture[str]


@pytest.fixture
def saved(tmp_path: Path) -> str:
    conv = samples.layer("conv", "Conv2d", samples.op("aten::conv2d"), module_path="conv")
    return str(
        samples.trace(samples.pipeline("predict", conv), began_unix_ns=1).save(tmp_path / "net.xsp")
    )


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30000")  # a busy machine is slow


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    with serving() as running:
        yield running, running.url


def names(server: Server) -> list[str]:
    return [
        span.name
        for request in server.requests
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@pytest.mark.parametrize("suffix", [".otlp.json", ".perfetto.json", ".speedscope.json"])
def test_export_writes_files_of_other_tools(saved: str, tmp_path: Path, suffix: str) -> None:
    to = tmp_path / f"net{suffix}"
    assert cli.run(["export", saved, "--to", str(to)]) == exit_code.OK
    assert "aten::conv2d" in json.dumps(json.loads(to.read_text()))


def test_export_writes_a_folder_and_replaces_no_other(
    saved: str, tmp_path: Path, capsys: Said
) -> None:
    to = tmp_path / "net.ctf"
    for _ in range(2):
        assert cli.run(["export", saved, "--to", f"{to}/"]) == exit_code.OK
        assert "3 of 3 spans to" in capsys.readouterr().err
    (to / "notes").touch()
    assert cli.run(["export", saved, "--to", str(to)]) == exit_code.NOT_MEASURED
    assert "not as xsp wrote it" in capsys.readouterr().err
    assert (to / "notes").exists()


def test_export_says_the_counts_as_json(
    saved: str, server: tuple[Server, str], capsys: Said
) -> None:
    assert cli.run(["export", saved, "--to", server[1], "--json"]) == exit_code.OK
    said = json.loads(capsys.readouterr().out)
    assert (said["sent"], said["accepted"], said["rejected"]) == (3, 3, 0)
    assert len(said["trace_id"]) == 32


def test_spans_over_the_budget_are_cut_unless_all_are_wanted(
    tmp_path: Path, server: tuple[Server, str], capsys: Said
) -> None:
    many = samples.pipeline("step", *(samples.op("aten::add") for _ in range(2_100)))
    saved = str(samples.trace(many).save(tmp_path / "many.xsp"))
    running, url = server
    for options, expected in (([], 2_000), (["--max-spans", "5"], 5), (["--full"], 2_101)):
        running.requests.clear()
        assert cli.run(["export", saved, "--to", url, *options]) == exit_code.OK
        sent = names(running)
        assert len(sent) == expected if expected == 2_101 else len(sent) <= expected
        told = f"{len(sent):,} spans stand for the trace's 2,101" in capsys.readouterr().err
        assert told == (len(sent) < 2_101)


@pytest.mark.parametrize(
    "to",
    ["otlp://localhost:4317", "trace.json", "ftp://u:secret@host", "u:secret@localhost:4317"],
)
def test_unknown_destination_lists_those_there_are(saved: str, to: str, capsys: Said) -> None:
    assert cli.run(["export", saved, "--to", to]) == exit_code.USAGE
    said = capsys.readouterr().err
    assert "http://" in said
    assert "secret" not in said


def test_destinations_after_one_that_fails_are_served(
    saved: str, tmp_path: Path, server: tuple[Server, str], capsys: Said
) -> None:
    nowhere = [tmp_path / "nowhere" / "net.otlp.json", f"http://127.0.0.1:{free_port()}"]
    to = [f"--to={destination}" for destination in (*nowhere, server[1])]
    assert cli.run(["export", saved, *to, "--json"]) == 4
    assert len(names(server[0])) == 3
    said = capsys.readouterr()
    counts = [json.loads(line)["accepted"] for line in said.out.splitlines()]
    assert counts == [0, 3]
    assert "there is no folder" in said.err
    assert "Connection refused" in said.err


def test_wrong_usage_of_one_destination_hides_no_failure_of_another(
    saved: str,
    server: tuple[Server, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Said,
) -> None:
    def torn(*args: object, **more: object) -> None:
        raise ValueError("it makes no sense")

    monkeypatch.setattr("xsp.show.export.destination._to_file", torn)
    nowhere = f"http://127.0.0.1:{free_port()}"
    to = [f"--to={one}" for one in (nowhere, "net.parquet", server[1])]
    assert cli.run(["export", saved, *to]) == 4
    said = capsys.readouterr().err
    assert "it makes no sense" in said
    assert f"xsp export FILE.xsp --to {nowhere}" in " ".join(said.split())
    assert len(names(server[0])) == 3


def test_missing_folder_of_a_file_is_said(saved: str, tmp_path: Path, capsys: Said) -> None:
    to = tmp_path / "nowhere" / "net.otlp.json"
    assert cli.run(["export", saved, "--to", str(to)]) == exit_code.NOT_MEASURED
    assert "there is no folder" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.slow
def test_profile_exports_what_it_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: tuple[Server, str],
) -> None:
    running, url = server
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("def work():\n    return sum(range(10_000))\n")
    quick = ["--levels", "model", "--runs", "3"]
    command = ["profile", "job.py:work", *quick, "--export", url, "--export", "w.otlp.json"]
    assert cli.run(command) == exit_code.OK
    assert names(running) == ["work"]
    assert (tmp_path / "w.otlp.json").exists()


@pytest.mark.parametrize("more", [["--export", "w.json"], ["--full", "--max-spans", "9"]])
def test_profile_looks_at_the_export_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("def work():\n    return 1\n")
    command = ["profile", "job.py:work", "--levels", "model", "--runs", "3", *more]
    assert cli.run(command) == exit_code.USAGE
    assert not list(tmp_path.glob("*.xsp"))


def test_runs_are_traces_of_their_own_that_spans_link_to(
    tmp_path: Path, server: tuple[Server, str]
) -> None:
    running, url = server

    def work() -> None:
        with xsp.span("add up"):
            sum(range(1000))

    trace = xsp.measure(work, levels="model", runs=3)
    saved = str(trace.save(tmp_path / "sum.xsp"))
    assert cli.run(["export", saved, "--to", url, "--runs"]) == exit_code.OK
    spans = [
        span
        for request in running.requests
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert len({span.trace_id for span in spans}) == 2
    root, merged, root_run, run = spans
    (link,) = merged.links
    assert (link.trace_id, link.span_id) == (run.trace_id, run.span_id)
    assert not root.links
    assert "(region run)" in root_run.name


def test_jaeger_that_is_not_there_is_said_with_what_brings_one(
    monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.setattr("xsp.show.cli.jaeger.find", lambda: None)
    assert cli.run(["jaeger"]) == exit_code.NOT_MEASURED
    assert "docker compose up -d" in capsys.readouterr().err


def test_writing_a_file_that_takes_long_is_no_sending(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    write = destination._to_file

    def slowly(*args: Any) -> Delivery:
        time.sleep(0.1)
        return write(*args)

    monkeypatch.setattr(command, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(destination, "_to_file", slowly)
    assert cli.run(["export", saved, "--to", str(tmp_path / "net.otlp.json")]) == exit_code.OK
    assert "still sending" not in capsys.readouterr().err


PREDICT = "import xsp\ndef run():\n    with xsp.span('part'):\n        return sum(range(99))\n"


def test_record_keeps_what_becomes_the_trace(tmp_path: Path, capsys: Said) -> None:
    target, to = tmp_path / "predict.py", tmp_path / "predict.xsprec"
    target.write_text(PREDICT)
    said = ["record", f"{target}:run", "--levels", "1", "--runs", "2", "-o", str(to)]
    assert cli.run(said) == exit_code.OK
    assert "xsp.testing.replay" in capsys.readouterr().err
    trace = replay(to)
    trace.check()
    assert trace.spans["name"].to_list() == ["run", "part"]
    assert trace.spans["runs"][0] == 2


@pytest.mark.parametrize(
    ("target", "content", "code"),
    [
        ("predict.py", PREDICT, exit_code.USAGE),
        ("predict.py:missing", PREDICT, exit_code.USAGE),
        ("predict.py:run", "def run():\n    raise OSError('no data')\n", exit_code.TARGET_FAILED),
    ],
)
def test_record_says_what_is_wrong_with_its_target(
    tmp_path: Path, capsys: Said, target: str, content: str, code: int
) -> None:
    (tmp_path / "predict.py").write_text(content)
    to = tmp_path / "predict.xsprec"
    assert cli.run(["record", str(tmp_path / target), "--levels", "1", "-o", str(to)]) == code
    assert capsys.readouterr().err
    assert not to.exists()


def test_record_refuses_an_output_that_cannot_be_written_before_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "predict.py").write_text("def run():\n    raise SystemExit('it was called')\n")
    (tmp_path / "folder").mkdir()
    command = ["record", f"{tmp_path}/predict.py:run", "-o", str(tmp_path / "folder")]
    assert cli.run(command) != exit_code.OK
    said = capsys.readouterr().err
    assert "folder" in said
    assert "it was called" not in said


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("net.speedscope.json", "to write a file: xsp export"),
        ("net.folded", "to write a file: xsp export"),
        ("http://localhost:4318", "to send it there: xsp export"),
    ],
)
@pytest.mark.parametrize("there", [True, False], ids=["there", "new"])
def test_a_destination_among_the_files_is_told_its_option(
    saved: str, tmp_path: Path, capsys: Said, to: str, said: str, there: bool
) -> None:
    if "://" not in to:
        to = str(tmp_path / to)
        if there:
            Path(to).write_text("a;b 1\n")
    assert cli.run(["export", saved, to]) == exit_code.USAGE
    assert f"{said} {saved} --to {to}" in capsys.readouterr().err
