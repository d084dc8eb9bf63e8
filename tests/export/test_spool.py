from __future__ import annotations

import json
import os
import resource
import stat
import sys
from pathlib import Path

import pytest
import samples
from deliveries import ALL, isolate
from otlp_server import Reply, first, free_port, refusing, serving, span_ids

import xsp
from xsp.errors import ExportError
from xsp.export import Delivery, send_spool, spool, spool_files
from xsp.export.otlp import endpoint
from xsp.trace.document import Trace, load

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, tmp_path)


def net() -> Trace:
    return samples.trace(samples.resnet(), began_unix_ns=1_750_000_000_000_000_577)


def failed(trace: Trace, to: str | None, **options: object) -> Delivery:
    """Export to where not all is accepted."""
    with pytest.raises(ExportError) as caught:
        trace.export(to, **options)  # type: ignore[arg-type]
    return _counted(caught.value)


def kept(trace: Trace | None = None, to: str = "", **options: object) -> Path:
    """Return the file of a trace that nobody took."""
    to = to or f"otlp+http://127.0.0.1:{free_port()}"
    path = failed(trace or net(), to, **options).spool
    assert path is not None
    return path


def still_failing(path: Path, to: str | None = None) -> Delivery:
    with pytest.raises(ExportError) as caught:
        send_spool(path, None if to is None else endpoint(to))
    return _counted(caught.value)


def _counted(error: ExportError) -> Delivery:
    result = error.delivery
    assert isinstance(result, Delivery)
    assert result.sent == result.accepted + result.rejected + result.undelivered
    assert result.message == str(error)
    return result


def at(port: int) -> str:
    return f"otlp+http://127.0.0.1:{port}"


def note_of(path: Path) -> Path:
    return path.with_suffix(".json")


# What is kept


@pytest.mark.parametrize(("protocol", "scheme"), [("grpc", "otlp"), ("http", "otlp+http")])
def test_a_failed_export_is_sent_later_the_same_to_the_byte(protocol: str, scheme: str) -> None:
    with serving(protocol, refusing("UNAUTHENTICATED", 401)) as server:
        result = failed(net(), f"{scheme}://127.0.0.1:{server.port}", parent=PARENT)
    assert (result.spool,) == spool_files()
    assert str(result.spool) in result.message
    with serving(protocol, port=server.port) as again:
        done = send_spool(spool_files()[0])
    assert (done.accepted, done.spool) == (len(net()), None)
    assert done.trace_id == result.trace_id == PARENT[3:35]
    assert [one.body for one in again.requests] == [one.body for one in server.requests]
    assert list(spool.folder().iterdir()) == []


def test_what_is_kept_is_the_trace() -> None:
    trace = net()
    found = load(kept(trace, max_spans=3))
    assert found.spans.equals(trace.spans)
    assert found.metadata == trace.metadata


def test_what_was_asked_for_is_asked_for_again() -> None:
    trace = xsp.measure(lambda: sum(range(1000)), levels="model", runs=3)
    path = kept(trace, max_spans=3, typical_runs=True)
    with serving("http") as whole, serving("http") as later:
        trace.export(at(whole.port), max_spans=3, typical_runs=True)
        send_spool(path, endpoint(at(later.port)))
    assert [one.body for one in later.requests] == [one.body for one in whole.requests]


def test_a_trace_drawn_as_measured_is_kept_like_this() -> None:
    trace = net().as_measured()
    assert load(kept(trace)).spans.equals(trace.spans)


def test_the_note_says_where_to_without_credentials() -> None:
    to = f"otlp+http://me:pw@127.0.0.1:{free_port()}/path?key=pw"
    path = kept(to=to, max_spans=None)
    assert json.loads(note_of(path).read_text()) == {
        "endpoint": f"otlp+http://127.0.0.1:{to.partition('@')[2].partition('?')[0][10:]}",
        "path": "/path",
        "max_spans": None,
        "typical_runs": False,
        "parent": None,
        "xsp": "0.1.0",
    }
    assert all(b"pw" not in file.read_bytes() for file in path.parent.iterdir())


def test_files_are_for_their_owner_only_and_nothing_lies_beside_them() -> None:
    before = os.umask(0)
    try:
        path = kept()
    finally:
        os.umask(before)
    assert sorted(path.parent.iterdir()) == [note_of(path), path]
    assert [stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()] == [0o600] * 2
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_trace_that_was_taken_in_part_is_kept_whole() -> None:
    with serving("http", lambda number, body: Reply(rejected=1, message="no name")) as server:
        result = failed(net(), at(server.port))
    assert (result.accepted, result.rejected) == (len(net()) - 1, 1)
    assert result.spool is not None
    assert "no name" in result.message
    with serving("http") as later:
        send_spool(result.spool, endpoint(at(later.port)))
    assert len(later.accepted) == len(net())


def test_a_full_disk_under_the_spool_is_said() -> None:
    trace, to = net(), at(free_port())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        result = failed(trace, to)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (result.spool, result.undelivered) == (None, len(trace))
    assert "not kept" in result.message
    assert f"xsp export FILE --to {to}" in result.message
    assert list(spool.folder().iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XSP_SPOOL_DIR", str(tmp_path / "file" / "spool"))
    result = failed(net(), at(free_port()))
    assert (result.spool, result.undelivered) == (None, len(net()))
    assert "XSP_SPOOL_DIR" in result.message


def test_ctrl_c_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **more: object) -> Delivery:
        raise KeyboardInterrupt

    monkeypatch.setattr(spool, "deliver", interrupted)
    with pytest.raises(KeyboardInterrupt):
        net().export(at(free_port()))
    assert spool_files() == ()


def test_files_are_told_the_oldest_first() -> None:
    assert spool_files() == ()
    paths = [kept(max_spans=most) for most in (9, 8, 7)]
    os.utime(paths[1], ns=(1, 1))
    assert spool_files() == (paths[1], paths[0], paths[2])


def test_a_trace_that_is_kept_again_is_there_once() -> None:
    to = at(free_port())
    first, again = kept(to=to), kept(to=to)
    assert spool_files() == (again,)
    assert first == again


def test_the_folder_is_where_the_user_keeps_state(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spool.folder() == Path(os.environ["XSP_SPOOL_DIR"])
    monkeypatch.delenv("XSP_SPOOL_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert spool.folder() == Path("/state/xsp/spool")


# Sending it again


def test_another_endpoint_can_be_named() -> None:
    path = kept()
    with serving("http") as server:
        done = send_spool(path, endpoint(at(server.port)))
    assert done.accepted == len(server.accepted) == len(net())
    assert spool_files() == ()


def test_the_root_path_of_the_variable_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv(ALL + "TRACES_ENDPOINT", f"http://127.0.0.1:{port}")
    failed(net(), None)
    monkeypatch.delenv(ALL + "TRACES_ENDPOINT")
    with serving("http", port=port) as server:
        send_spool(spool_files()[0])
    assert server.requests[0].path == "/"


def test_still_nobody_there_and_the_trace_stays() -> None:
    path = kept()
    result = still_failing(path)
    assert (result.accepted, result.undelivered, result.spool) == (0, len(net()), path)
    assert str(path) in result.message
    assert "delete" not in result.message
    assert sorted(path.parent.iterdir()) == [note_of(path), path]


def test_what_a_server_rejects_is_said_to_be_deleted() -> None:
    path = kept()
    with serving("http", refusing("", 400)) as server:
        result = still_failing(path, at(server.port))
    assert result.rejected == len(net())
    assert "delete it if the server will never take it" in result.message
    assert spool_files() == (path,)


def test_what_was_sent_is_not_there_a_second_time() -> None:
    path = kept()
    with serving("http") as server:
        send_spool(path, endpoint(at(server.port)))
        with pytest.raises(ExportError, match="sent already"):
            send_spool(path)


def test_a_file_that_vanishes_while_it_is_sent_was_sent_by_another() -> None:
    path = kept()

    def vanish(number: int, body: bytes) -> Reply:
        path.unlink()
        return Reply()

    with serving("http", first(1, vanish)) as server:
        assert send_spool(path, endpoint(at(server.port))).accepted == len(net())


# Credentials


SECRET = "authorization=Bearer%20TOP-SECRET"


def test_a_file_does_not_decide_who_gets_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept()
    monkeypatch.setenv(ALL + "HEADERS", SECRET)
    monkeypatch.setenv(ALL + "ENDPOINT", "https://collector.invalid")
    with serving("http") as server:
        written = json.loads(note_of(path).read_text())
        note_of(path).write_text(
            json.dumps(written | {"endpoint": f"{at(server.port)}/v1/traces", "path": "/v1/traces"})
        )
        send_spool(path)
    assert "authorization" not in server.requests[0].headers


def test_headers_that_were_withheld_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "HEADERS", SECRET)
    with serving("http", refusing("", 401)) as server:
        path = kept(to=at(server.port))
        result = still_failing(path)
        given = still_failing(path, at(server.port))
    assert [one.headers.get("authorization") for one in server.requests] == [
        "Bearer TOP-SECRET",
        None,
        "Bearer TOP-SECRET",
    ]
    assert "headers of OTEL_EXPORTER_OTLP_HEADERS were not sent" in result.message
    assert "were not sent" not in given.message


def test_the_endpoint_of_the_variables_gets_their_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv(ALL + "ENDPOINT", f"http://127.0.0.1:{port}/a?key=b")
    failed(net(), None)
    monkeypatch.setenv(ALL + "HEADERS", SECRET)
    with serving("http", port=port) as server:
        send_spool(spool_files()[0])
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer TOP-SECRET"
    assert request.path == "/a/v1/traces?key=b"


# Damaged, and not ours


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"endpoint": "otlp+http://127.0.0.1:1"}',
        b'{"endpoint":7,"path":"","max_spans":null,"runs":false,"parent":null,"xsp":""}',
        b'{"endpoint":"\\u001b[2J","path":"","max_spans":null,"runs":false,"parent":null,"xsp":""}',
        b'{"endpoint":"otlp+http://a","path":"/","max_spans":1e99,"runs":false,"parent":null,"xsp":""}',
    ],
)
def test_a_damaged_note_is_said_and_the_trace_can_be_exported(content: bytes) -> None:
    path = kept()
    note_of(path).write_bytes(content)
    with pytest.raises(ExportError, match="is damaged, and nothing was sent") as told:
        send_spool(path)
    assert f"xsp export {path} --to" in str(told.value)
    assert str(told.value).isprintable()
    with serving("http") as server:
        assert load(path).export(at(server.port)).accepted == len(net())


@pytest.mark.parametrize("content", [b"", b"XSP", b"PAR1" * 50])
def test_a_damaged_trace_is_said(content: bytes) -> None:
    path = kept()
    path.write_bytes(content)
    with pytest.raises(ExportError, match="damaged"):
        send_spool(path)
    assert path.read_bytes() == content


def test_a_trace_that_does_not_wait_is_to_be_exported(tmp_path: Path) -> None:
    path = net().save(tmp_path / "net.xsp")
    with pytest.raises(ExportError, match="without --spool"):
        send_spool(path)


@pytest.mark.parametrize("suffix", [".xsp", ".json"])
def test_files_of_others_are_refused(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept()
    look = Path.lstat

    def someone_elses(file: Path) -> os.stat_result:
        found = list(look(file))
        found[4] += (file.suffix == suffix) * 1
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", someone_elses)
    with serving("http") as server, pytest.raises(ExportError, match="no file of yours"):
        send_spool(path, endpoint(at(server.port)))
    assert not server.requests


@pytest.mark.parametrize("suffix", [".xsp", ".json"])
def test_links_are_refused(tmp_path: Path, suffix: str) -> None:
    path = kept()
    file = path.with_suffix(suffix)
    file.symlink_to(file.rename(tmp_path / file.name))
    with pytest.raises(ExportError, match="no file of yours"):
        send_spool(path)


def test_the_ids_of_a_request_are_those_of_the_kept_trace() -> None:
    path = kept()
    with serving("http") as one, serving("http") as other:
        send_spool(path, endpoint(at(one.port)))
        net().export(at(other.port))
    assert span_ids(one.requests[0].body) == span_ids(other.requests[0].body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path", "x"),
        ("path", "@evil.com/x"),
        ("path", "/a\r\nb"),
        ("max_spans", 0),
        ("parent", "zz"),
    ],
)
def test_a_note_with_a_value_that_makes_no_sense_is_damaged(name: str, value: object) -> None:
    path = kept()
    note = json.loads(note_of(path).read_text())
    note_of(path).write_text(json.dumps(note | {name: value}))
    with pytest.raises(ExportError, match=r"\.json is damaged, and nothing was sent"):
        send_spool(path)


def test_a_note_is_not_damaged_because_grpc_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = kept()
    note = json.loads(note_of(path).read_text())
    note_of(path).write_text(json.dumps(note | {"endpoint": "otlp://127.0.0.1:4317", "path": ""}))
    monkeypatch.setattr(sys.modules["xsp.export.otlp.endpoint"], "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"xsp\[grpc\]"):
        send_spool(path)
    assert path.exists()
