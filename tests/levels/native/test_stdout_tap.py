from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp_levels.native import stdout_tap
from xsp_levels.native.stdout_tap import open_tap, remains

LINE = re.compile(rb"LIB [^\n]*\n")
OTHER = re.compile(rb"OTHER [^\n]*\n")
HEAD = """
import ctypes, os, re, signal, subprocess, sys, threading, time
from xsp_levels.native.stdout_tap import open_tap
libc = ctypes.CDLL(None)
LINE = re.compile(rb"LIB [^\\n]*\\n")
"""
linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="run this test on Linux"
)


def run(code: str, **given: Any) -> subprocess.CompletedProcess[bytes]:
    script = HEAD + textwrap.dedent(code)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, timeout=120, check=False, **given)


def output_of(code: str) -> bytes:
    finished = run(code)
    assert finished.stderr == b""
    assert finished.returncode == 0
    return finished.stdout


def test_lines_are_taken_and_the_rest_arrives(capfd: pytest.CaptureFixture[str]) -> None:
    tap = open_tap(LINE)
    os.write(1, b"no newline LIB one\nLIB two\n\nthe LIBrary\nend")
    taken = tap.close()
    assert taken.lines == b"LIB one\nLIB two\n"
    assert taken.problems == ()
    assert capfd.readouterr().out == "no newline \nthe LIBrary\nend"


@unhurried
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"LIB x\n", b"LIB ", b"\n"]))))
def test_whatever_is_written_comes_out_in_order(pieces: list[bytes]) -> None:
    before, (reader, writer) = os.dup(1), os.pipe()
    os.dup2(writer, 1)
    try:
        tap = open_tap(LINE)
        for piece in pieces:
            os.write(1, piece)
        taken = tap.close()
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(writer)
    with os.fdopen(reader, "rb") as out:
        passed_on = out.read()
    written = b"".join(pieces)
    assert taken.lines == b"".join(LINE.findall(written))
    assert passed_on == LINE.sub(b"", written)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_remains_are_what_no_range_covers(pairs: list[tuple[int, int]]) -> None:
    ranges = [(min(pair), max(pair)) for pair in pairs]
    covered = {i for start, stop in ranges for i in range(start, stop)}
    left = [i for start, stop in remains(ranges, 20) for i in range(start, stop)]
    assert left == [i for i in range(20) if i not in covered]


def test_taps_open_at_once_get_their_own_lines(capfd: pytest.CaptureFixture[str]) -> None:
    first = open_tap(LINE)
    os.write(1, b"LIB 1\nOTHER is the user's, for now\n")
    second = open_tap(OTHER)
    os.write(1, b"LIB 2\nOTHER 1\nuser\n")
    assert second.close().lines == b"OTHER 1\n"
    os.write(1, b"LIB 3\nOTHER is the user's again\n")
    assert first.close().lines == b"LIB 1\nLIB 2\nLIB 3\n"
    assert capfd.readouterr().out == (
        "OTHER is the user's, for now\nuser\nOTHER is the user's again\n"
    )


def test_shared_lines_are_both_taken_and_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    tap = open_tap(LINE, share=True)
    os.write(1, b"a\nLIB one\nb\n")
    assert tap.close().lines == b"LIB one\n"
    assert capfd.readouterr().out == "a\nLIB one\nb\n"


def test_a_tap_closed_twice_has_nothing_more() -> None:
    tap = open_tap(LINE)
    os.write(1, b"LIB one\n")
    assert tap.close().lines == b"LIB one\n"
    assert tap.close().lines == b""


def test_no_descriptor_stays_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        tap = open_tap(LINE)
        os.write(1, b"LIB one\n")
        tap.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_is_changed_where_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*given: object) -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    before = os.fstat(1)
    monkeypatch.setattr(stdout_tap, "_memory_file", none_left)
    with pytest.raises(OSError, match="Too many"):
        open_tap(LINE)
    assert os.path.samestat(os.fstat(1), before)
    monkeypatch.undo()
    open_tap(LINE).close()


def test_a_million_bytes_from_c_and_python_threads_arrive_unchanged() -> None:
    code = """
        def c(number):
            for i in range(3000):
                libc.printf(b"c%d line %d of some length, and more of it\\n", number, i)
                if i % 7 == 0:
                    libc.printf(b"LIB c %d\\n", i)
                    libc.fflush(None)
        def raw(number):
            for i in range(3000):
                os.write(1, b"r%d line %d of some length, and more of it\\n" % (number, i))
        def text(number):
            for i in range(3000):
                sys.stdout.write(f"p{number} line {i} of some length, and more\\n")
        threads = [threading.Thread(target=f, args=(n,)) for f in (c, raw, text) for n in range(3)]
        for thread in threads: thread.start()
        taken = b""
        while any(thread.is_alive() for thread in threads):
            tap = open_tap(LINE)
            time.sleep(0.002)
            taken += tap.close().lines
        for thread in threads: thread.join()
        tap = open_tap(LINE); libc.fflush(None); sys.stdout.flush()
        libc.printf(b"\\nLIB c 1\\n"); libc.fflush(None)  # this line is whole, whatever was before
        taken += tap.close().lines
        sys.stderr.buffer.write(taken)
        """
    finished = run(code)
    expected = Counter[int]()
    for number in range(3):
        for i in range(3000):
            for kind in "cr":
                expected.update(
                    b"%c%d line %d of some length, and more of it\n" % (ord(kind), number, i)
                )
            expected.update(b"p%d line %d of some length, and more\n" % (number, i))
            expected.update(b"LIB c %d\n" % i if i % 7 == 0 else b"")
    expected.update(b"\nLIB c 1\n")
    assert expected.total() > 1_000_000
    assert b"LIB c 1\n" in finished.stderr
    # Python's and C's own buffers are cut where they are full, and whoever else writes lies
    # between: lines may be mixed, bytes may not be lost.
    assert Counter(finished.stdout) + Counter(finished.stderr) == expected


def test_one_writers_order_is_kept_across_c_python_and_descriptor() -> None:
    code = """
        def write(i):
            if i % 3 == 0: print("python", i, flush=True)
            elif i % 3 == 1: libc.printf(b"c %d\\n", i); libc.fflush(None)
            else: os.write(1, b"raw %d\\n" % i)
        for i in range(30000):
            if i % 100 == 10: tap = open_tap(LINE)
            write(i)
            if i % 5 == 0: libc.printf(b"LIB %d\\n", i) if 10 <= i % 100 < 90 else None
            if i % 100 == 90: tap.close()
        """
    names = ("python", "c", "raw")
    expected = "".join(f"{names[i % 3]} {i}\n" for i in range(30000)).encode()
    assert output_of(code) == expected


def test_unflushed_text_of_python_and_c_stays_on_its_side() -> None:
    code = """
        print("before", end=" ")
        libc.printf(b"c before ")
        tap = open_tap(LINE)
        print("no line yet", end=" ")
        libc.printf(b"LIB taken\\n")
        tap.close()
        print("after")
        """
    assert output_of(code) == b"before c before no line yet after\n"


def test_closed_standard_output_stays_closed() -> None:
    code = """
        os.close(1)
        tap = open_tap(LINE)
        os.write(1, b"user LIB one\\n")
        taken = tap.close()
        try: os.fstat(1)
        except OSError: sys.stderr.write(repr(taken.lines))
        sys.stdout = None
        """
    assert run(code).stderr == b"b'LIB one\\n'"


def test_broken_pipe_is_told_and_harms_nobody() -> None:
    code = """
        r, w = os.pipe(); os.dup2(w, 1); os.close(w); os.close(r)
        tap = open_tap(LINE)
        os.write(1, b"user LIB one\\n")
        taken = tap.close()
        sys.stderr.write(f"{taken.lines} {taken.problems}")
        os._exit(0)
        """
    said = run(code).stderr.decode()
    assert said.startswith("b'LIB one\\n'")
    assert "could not be written to standard output: [Errno 32]" in said


@pytest.mark.parametrize("blocking", [True, False])
def test_a_full_pipe_is_waited_for(blocking: bool) -> None:
    code = f"""
        os.set_blocking(1, {blocking})
        tap = open_tap(LINE)
        for i in range(20000): os.write(1, b"%06d some text\\nLIB x\\n" % i)
        tap.close()
        """
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(code)], stdout=subprocess.PIPE
    )
    time.sleep(1.0)
    out, _ = process.communicate(timeout=60)
    assert out == b"".join(b"%06d some text\n" % i for i in range(20000))


def test_output_into_a_file_is_appended_in_place(tmp_path: Path) -> None:
    code = """
        print("one")
        tap = open_tap(LINE); print("two"); libc.puts(b"LIB x"); tap.close()
        print("three")
        """
    path = tmp_path / "out.txt"
    with path.open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", HEAD + textwrap.dedent(code)], stdout=file, check=True
        )
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_terminal_stays_line_buffered() -> None:
    code = """
        tap = open_tap(LINE); libc.printf(b"LIB x\\nuser\\n"); tap.close()
        libc.printf(b"at once\\n")
        time.sleep(60)
        """
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(code)], stdout=slave, close_fds=True
    )
    os.close(slave)
    try:
        seen = _read_until(master, b"at once")
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert seen == b"user\r\nat once\r\n"


def _read_until(descriptor: int, end: bytes) -> bytes:
    seen = b""
    while end not in seen:
        seen += os.read(descriptor, 4096)
    return seen


@pytest.mark.forks
def test_forked_child_prints_to_the_users_own_descriptor_in_order() -> None:
    code = """
        tap = open_tap(LINE)
        os.write(1, b"parent first LIB 1\\n\\n")
        child = os.fork()
        if child == 0:
            os.write(1, b"child LIB is the user's here\\n")
            assert tap.close().lines == b""
            os._exit(0)
        os.waitpid(child, 0)
        os.write(1, b"LIB 2\\nparent last\\n")
        sys.stderr.write(repr(tap.close().lines))
        """
    finished = run(code)
    assert finished.stdout == b"parent first \nchild LIB is the user's here\nparent last\n"
    assert finished.stderr == b"b'LIB 1\\nLIB 2\\n'"


@linux_only
def test_process_that_is_killed_loses_what_it_printed_while_tapped_and_no_more() -> None:
    code = """
        print("before")
        tap = open_tap(LINE)
        print("one LIB 1", flush=True)
        tap.close()
        tap = open_tap(LINE)
        os.write(1, b"two")
        import faulthandler
        faulthandler.enable()
        os.kill(os.getpid(), signal.SIGSEGV)
        """
    finished = run(code)
    assert finished.stdout == b"before\none "
    assert b"Segmentation fault" in finished.stderr  # which is another descriptor


@linux_only
def test_program_that_outlives_the_tap_is_still_heard() -> None:
    code = """
        tap = open_tap(LINE)
        child = subprocess.Popen(["/bin/sh", "-c", "echo one; sleep 0.5; echo two; sleep 0.3"])
        time.sleep(0.2)
        tap.close()
        child.wait()
        time.sleep(0.5)
        print("three")
        """
    assert output_of(code) == b"one\ntwo\nthree\n"


@linux_only
def test_program_that_outlives_the_tap_is_heard_without_a_follower() -> None:
    code = """
        from xsp_levels.native import stdout_tap
        stdout_tap.follow = lambda destination, reader: False
        tap = open_tap(LINE)
        child = subprocess.Popen(["/bin/sh", "-c", "echo one; sleep 0.5; echo two"])
        time.sleep(0.2)
        tap.close()
        child.wait()
        open_tap(LINE).close()
        print("three")
        """
    assert output_of(code) == b"one\ntwo\nthree\n"


@linux_only
def test_program_that_outlives_the_process_is_still_heard() -> None:
    code = """
        tap = open_tap(LINE)
        subprocess.Popen(["/bin/sh", "-c", "echo one; sleep 0.5; echo two"])
        time.sleep(0.2)
        tap.close()
        os._exit(0)
        """
    assert run(code).stdout == b"one\ntwo\n"


def followers() -> set[str]:
    command = ["/bin/sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"]
    said = subprocess.run(command, capture_output=True, check=False).stdout.decode()
    return set(re.findall(r"stdout_follower\.py \d+ \d+", said))


@linux_only
def test_follower_is_gone_soon_after_the_program() -> None:
    before = followers()
    code = """
        tap = open_tap(LINE)
        child = subprocess.Popen(["/bin/sh", "-c", "sleep 0.5"])
        tap.close()
        child.wait()
        """
    assert output_of(code) == b""
    deadline = time.monotonic() + 10
    while followers() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert followers() <= before


def test_no_process_is_started_where_no_program_outlives_the_tap() -> None:
    code = """
        from xsp_levels.native import stdout_tap
        stdout_tap.follow = lambda *given: sys.stderr.write("followed")
        tap = open_tap(LINE)
        subprocess.run(["/bin/sh", "-c", "echo one"])
        tap.close()
        """
    assert output_of(code) == b"one\n"


def test_descriptor_that_the_user_redirected_meanwhile_is_left_alone(tmp_path: Path) -> None:
    code = f"""
        tap = open_tap(LINE)
        os.write(1, b"one LIB 1\\n")
        file = os.open({str(tmp_path / "users.txt")!r}, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        tap.close()
        os.write(1, b"two\\n")
        """
    assert output_of(code) == b"one "
    assert (tmp_path / "users.txt").read_bytes() == b"two\n"


@linux_only
def test_descriptor_that_the_user_saved_meanwhile_still_leads_out() -> None:
    code = """
        tap = open_tap(LINE)
        saved = os.dup(1)
        tap.close()
        os.dup2(saved, 1); os.close(saved)
        os.write(1, b"still here\\n")
        time.sleep(0.3)
        """
    assert output_of(code) == b"still here\n"


def test_exceptions_and_interrupts_leave_the_descriptor_as_it_was() -> None:
    before = os.fstat(1)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            _raise_with_tap(error)
        assert os.path.samestat(os.fstat(1), before)


def _raise_with_tap(error: type[BaseException]) -> None:
    tap = open_tap(LINE)
    try:
        raise error
    finally:
        tap.close()


def test_taps_of_several_threads_do_not_disturb_each_other(
    capfd: pytest.CaptureFixture[str],
) -> None:
    taken: list[bytes] = []

    def tap_often(name: bytes) -> None:
        pattern = re.compile(rb"%s [^\n]*\n" % name)
        for i in range(50):
            tap = open_tap(pattern)
            os.write(1, b"%s %d\nuser %s\n" % (name, i, name))
            taken.append(tap.close().lines)

    threads = [threading.Thread(target=tap_often, args=(b"T%d" % i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(b"T%d %d\n" % (t, i) for t in range(4) for i in range(50))
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(
        f"user T{t}" for t in range(4) for _ in range(50)
    )


@linux_only
@pytest.mark.parametrize("another", [True, False])
def test_interrupt_while_output_is_passed_on_loses_nothing(another: bool) -> None:
    code = f"""
        tap = open_tap(LINE)
        for i in range(30000): os.write(1, b"%06d user\\nLIB x\\n" % i)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try: tap.close()
        except KeyboardInterrupt: os.write(2, b"interrupted")
        sys.stdin.readline()
        if {another}:
            tap = open_tap(LINE)
            os.write(1, b"LIB y\\nlast\\n")
            tap.close()
        """
    with subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.read(11) == b"interrupted"
        out, _ = process.communicate(b"\n", timeout=60)
    expected = b"".join(b"%06d user\n" % i for i in range(30000))
    assert out == expected + b"last\n" * another
