from __future__ import annotations

import fcntl
import multiprocessing
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deliveries import ALL, TRACE_ID, isolate
from hypothesis import given, settings
from hypothesis import strategies as st
from otlp_server import (
    Reply,
    first,
    free_port,
    make_chunk,
    make_chunks,
    refusing,
    serving,
    span_ids,
)

from xsp.errors import ExportError
from xsp.export import spool_file
from xsp.export.delivery import Delivery, deliver
from xsp.export.endpoint import endpoint
from xsp.export.protobuf import Chunk
from xsp.export.spool import send_spool, spool_files


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, tmp_path)


@contextmanager
def _spool_folder() -> Iterator[Path]:
    """A folder of its own for each example of hypothesis."""
    before = os.environ["XSP_SPOOL_DIR"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XSP_SPOOL_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ["XSP_SPOOL_DIR"] = before


def _write(chunks: list[Chunk], url: str = "otlp://host:1", name: str = "resnet50") -> Path:
    with spool_file.Writer(endpoint(url), name=name, trace_id=TRACE_ID) as writer:
        for chunk in chunks:
            writer.add(chunk)
        path = writer.finish()
    assert path is not None
    return path


def _read(path: Path) -> list[Chunk]:
    with spool_file.opened(path) as stored:
        return [frame.chunk for frame in stored.frames()]


def _failed(path: Path, url: str | None = None) -> Delivery:
    with pytest.raises(ExportError) as caught:
        send_spool(path, None if url is None else endpoint(url))
    result = caught.value.delivery
    assert isinstance(result, Delivery)
    assert result.sent == result.accepted + result.rejected + result.undelivered
    return result


chunks_of_anything = st.lists(
    st.builds(Chunk, st.binary(max_size=300), st.integers(0, 2**32 - 1)), min_size=1, max_size=5
)


@given(chunks_of_anything)
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read_again(chunks: list[Chunk]) -> None:
    with _spool_folder():
        assert _read(_write(chunks)) == chunks


# The mark of a frame, which a body may hold as well.
chunks_with_marks = st.lists(
    st.builds(
        Chunk, st.lists(st.sampled_from([b"\xf5XSP", b"P", b"\0", b"ab"])).map(b"".join), st.just(1)
    ),
    min_size=1,
    max_size=5,
)


@given(chunks_with_marks, st.data())
@settings(max_examples=100, deadline=None)
def test_a_file_cut_anywhere_keeps_what_is_before_the_cut(
    chunks: list[Chunk], data: st.DataObject
) -> None:
    with _spool_folder():
        path = _write(chunks)
        whole = path.read_bytes()
        size = data.draw(st.integers(0, len(whole) - 1))
        path.write_bytes(whole[:size])
        frames = sum(17 + len(chunk.body) for chunk in chunks)
        if size < len(whole) - frames:
            with pytest.raises(ExportError, match="damaged"):
                _read(path)
            return
        left = _read(path)
        assert left == chunks[: len(left)]
        assert len(left) < len(chunks)
        end = len(whole) - frames + sum(17 + len(chunk.body) for chunk in chunks[: len(left) + 1])
        assert size < end  # the first that is missing was indeed cut


@given(chunks_with_marks, st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_byte_costs_one_frame_at_most(chunks: list[Chunk], data: st.DataObject) -> None:
    with _spool_folder():
        path = _write(chunks)
        whole = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(whole)
        if at < len(whole) - sum(17 + len(chunk.body) for chunk in chunks):
            with pytest.raises(ExportError, match="damaged"):
                _read(path)
            return
        left = _read(path)
        assert len(left) >= len(chunks) - 1
        assert all(chunk in chunks for chunk in left)


def test_a_file_is_for_its_owner_only_and_nothing_lies_beside_it() -> None:
    path = _write(make_chunks(2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_until_it_is_complete_there_is_no_file() -> None:
    with spool_file.Writer(endpoint("otlp://host"), name="a", trace_id=TRACE_ID) as writer:
        writer.add(make_chunk(1, 1))
        assert spool_files() == ()
    assert list(spool_file.folder().iterdir()) == []


def test_what_a_killed_process_left_goes_after_a_day() -> None:
    folder = _write(make_chunks(1)).parent
    stale, recent, other = (folder / f".{name}.part" for name in ("a.spool", "b.spool", "c"))
    for path in (stale, recent, other):
        path.write_bytes(b"XSP")
    for path in (stale, other):
        os.utime(path, (0, 0))
    _write(make_chunks(1))
    assert [path.exists() for path in (stale, recent, other)] == [False, True, True]


def test_without_a_chunk_there_is_no_file() -> None:
    with spool_file.Writer(endpoint("otlp://host"), name="a", trace_id=TRACE_ID) as writer:
        assert writer.finish() is None
    assert spool_files() == ()


def test_the_header_says_what_it_is() -> None:
    path = _write(make_chunks(2), "otlp+http://me:pw@host/path?key=pw", name='a "b"\n/../ü')
    with spool_file.opened(path) as stored:
        header = stored.header
    assert header["endpoint"] == "otlp+http://host:4318/path"
    assert header["name"] == 'a "b"\n/../ü'
    assert header["trace_id"] == TRACE_ID.hex()
    assert header["spans"] == 20
    assert header["created"].endswith("+00:00")
    assert b"pw" not in path.read_bytes()
    assert path.parent == spool_file.folder()


def test_files_are_told_the_oldest_first() -> None:
    assert spool_files() == ()
    paths = tuple(_write(make_chunks(1), name=name) for name in ("z", "a", "m"))
    assert spool_files() == paths


def test_the_folder_is_where_the_user_keeps_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert spool_file.folder() == Path(os.environ["XSP_SPOOL_DIR"])
    monkeypatch.delenv("XSP_SPOOL_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert spool_file.folder() == Path("/state/xsp/spool")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert spool_file.folder() == Path("/home/me/.local/state/xsp/spool")


@pytest.mark.parametrize(("protocol", "scheme"), [("grpc", "otlp"), ("http", "otlp+http")])
def test_a_failed_export_is_sent_later_once_under_the_same_ids(protocol: str, scheme: str) -> None:
    to = endpoint(f"{scheme}://127.0.0.1:{free_port()}")
    with pytest.raises(ExportError):
        deliver(make_chunks(4), to, name="net", trace_id=TRACE_ID, total=40)
    (path,) = spool_files()
    with serving(protocol, port=to.port) as server:
        result = send_spool(path)
        assert (result.sent, result.accepted, result.spool) == (40, 40, None)
        assert result.trace_id == TRACE_ID.hex()
        assert dict(server.accepted) == dict.fromkeys(range(1, 41), 1)
        assert spool_files() == ()
        with pytest.raises(ExportError, match="sent already"):
            send_spool(path)


def test_another_endpoint_can_be_named() -> None:
    path = _write(make_chunks(2), "otlp://nowhere.invalid:1")
    with serving("http") as server:
        result = send_spool(path, endpoint(f"otlp+http://127.0.0.1:{server.port}"))
    assert result.accepted == 20


def test_headers_come_from_the_variables_when_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("http") as server:
        path = _write(make_chunks(1), f"otlp+http://me:pw@127.0.0.1:{server.port}/a")
        monkeypatch.setenv(ALL + "HEADERS", "x-key=abc")
        send_spool(path)
    (request,) = server.requests
    assert (request.path, request.headers["x-key"]) == ("/a", "abc")
    assert "authorization" not in request.headers


def test_the_root_path_of_the_variable_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("http") as server:
        monkeypatch.setenv(ALL + "PROTOCOL", "http/protobuf")
        monkeypatch.setenv(ALL + "TRACES_ENDPOINT", f"http://127.0.0.1:{server.port}")
        with spool_file.Writer(endpoint(None), name="a", trace_id=TRACE_ID) as writer:
            writer.add(make_chunk(1, 1))
            path = writer.finish()
        assert path is not None
        send_spool(path)
    assert server.requests[0].path == "/"


def test_still_nobody_there_and_the_file_stays() -> None:
    path = _write(make_chunks(3), f"otlp+http://127.0.0.1:{free_port()}")
    before = path.read_bytes()
    result = _failed(path)
    assert (result.sent, result.accepted, result.undelivered) == (30, 0, 30)
    assert result.spool == path
    assert path.read_bytes() == before
    assert str(path) in result.message
    assert "nothing listens" in result.message


def test_what_was_accepted_before_it_broke_off_is_not_sent_again() -> None:
    path = _write(make_chunks(5))
    closing = refusing("", 401)
    with serving("http", lambda number, body: closing(0, body) if number == 2 else Reply()) as one:
        result = _failed(path, f"otlp+http://127.0.0.1:{one.port}")
    assert (result.sent, result.accepted, result.undelivered) == (50, 20, 30)
    with serving("http") as two:
        assert send_spool(path, endpoint(f"otlp+http://127.0.0.1:{two.port}")).sent == 30
    assert one.accepted + two.accepted == dict.fromkeys(range(1, 51), 1)


def test_each_is_noted_before_the_next_is_sent() -> None:
    path = _write(make_chunks(3))
    pending = []

    def look(number: int, body: bytes) -> Reply:
        content = path.read_bytes()
        pending.append((content.count(b"\xf5XSPP"), content.count(b"\xf5XSPA")))
        return Reply()

    with serving("http", look) as server:
        send_spool(path, endpoint(f"otlp+http://127.0.0.1:{server.port}"))
    assert pending == [(3, 0), (2, 1), (1, 2)]


def test_rejected_spans_stay_in_the_file() -> None:
    path = _write(make_chunks(3))
    with serving("http", first(1, lambda number, body: Reply(rejected=4))) as server:
        result = _failed(path, f"otlp+http://127.0.0.1:{server.port}")
    assert (result.sent, result.accepted, result.rejected) == (30, 26, 4)
    assert result.spool == path
    with serving("http") as server:
        send_spool(path, endpoint(f"otlp+http://127.0.0.1:{server.port}"))
    assert dict(server.accepted) == dict.fromkeys(range(1, 11), 1)


def test_file_of_which_all_is_rejected_is_said_to_be_deleted() -> None:
    path = _write(make_chunks(2))
    for script, said in ((refusing("", 400), True), (first(1, refusing("", 500)), False)):
        with serving("http", script) as server:
            result = _failed(path, f"otlp+http://127.0.0.1:{server.port}")
        assert ("delete the file if the server will never take them" in result.message) == said


def test_what_is_too_large_is_sent_in_parts() -> None:
    path = _write([make_chunk(1, 8, padding=1000)])
    with serving("http", most_bytes=3000) as server:
        send_spool(path, endpoint(f"otlp+http://127.0.0.1:{server.port}"))
    assert dict(server.accepted) == dict.fromkeys(range(1, 9), 1)


def test_a_file_cut_short_is_sent_as_far_as_it_goes_and_set_aside() -> None:
    path = _write(make_chunks(4))
    path.write_bytes(path.read_bytes()[:-5])
    with serving("http") as server:
        result = _failed(path, f"otlp+http://127.0.0.1:{server.port}")
    assert (result.sent, result.accepted, result.undelivered) == (40, 30, 10)
    assert dict(server.accepted) == dict.fromkeys(range(1, 31), 1)
    assert "10 spans are missing" in result.message
    assert "xsp export FILE" in result.message
    assert result.spool is not None
    assert result.spool.exists()
    assert not path.exists()
    assert str(result.spool) in result.message
    assert spool_files() == ()


def test_a_damaged_file_that_nobody_took_keeps_its_name() -> None:
    path = _write(make_chunks(4), f"otlp+http://127.0.0.1:{free_port()}")
    path.write_bytes(path.read_bytes()[:-5])
    result = _failed(path)
    assert (result.sent, result.accepted, result.undelivered) == (40, 0, 40)
    assert "10 spans are missing" in result.message
    assert spool_files() == (path,)


@pytest.mark.parametrize("content", [b"", b"XSP", b"PAR1" * 50])
def test_what_is_no_spool_file_is_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.spool"
    path.write_bytes(content)
    with pytest.raises(ExportError, match="no spool file"):
        send_spool(path)
    assert path.read_bytes() == content


def test_a_trace_given_for_a_spool_file_is_not_to_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "net.xsp"
    path.write_bytes(b"PAR1" * 50)
    with pytest.raises(ExportError, match="without --spool") as told:
        send_spool(path)
    assert "delete" not in str(told.value)


def test_two_do_not_send_the_same_file() -> None:
    path = _write(make_chunks(2))
    with path.open("rb") as other:
        fcntl.flock(other.fileno(), fcntl.LOCK_EX)
        with pytest.raises(ExportError, match="another process"):
            send_spool(path)
    assert spool_files() == (path,)


def _send_in_a_process(path: Path, port: int) -> str:
    try:
        send_spool(path, endpoint(f"otlp+http://127.0.0.1:{port}"))
    except ExportError:
        return "failed"
    return "sent"


def test_of_two_processes_one_sends() -> None:
    path = _write(make_chunks(20))
    with serving("http") as server:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            work = [(path, server.port)] * 2
            outcomes = pool.starmap(_send_in_a_process, work, chunksize=1)
            pool.close()
            pool.join()
        assert sorted(outcomes) in (["failed", "sent"],)
    assert dict(server.accepted) == dict.fromkeys(range(1, 201), 1)


def test_a_file_that_another_has_just_sent_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = _write(make_chunks(1))
    lock = fcntl.flock

    def too_late(descriptor: int, operation: int) -> None:
        path.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with pytest.raises(ExportError, match="just been sent"):
        send_spool(path)


def test_the_body_is_what_was_to_be_sent() -> None:
    (chunk,) = _read(_write([make_chunk(7, 3)]))
    assert span_ids(chunk.body) == [7, 8, 9]
