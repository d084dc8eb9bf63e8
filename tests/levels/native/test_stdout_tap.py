from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import textwrap
import time
from collections import Counter
from pathlib import Path
from select import PIPE_BUF
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp_levels.native.stdout_tap import open_tap

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
    assert taken.warnings == ()
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


def test_taps_open_at_once_get_their_self_lines(capfd: pytest.CaptureFixture[str]) -> None:
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


def test_no_descriptor_stays_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        tap = open_tap(LINE)
        os.write(1, b"LIB one\n")
        tap.close()
    assert len(os.listdir("/proc/self/fd")) == before


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
        sys.stderr.write(f"{taken.lines} {taken.warnings}")
        os._exit(0)
        """
    said = run(code).stderr.decode()
    assert said.startswith("b'LIB one\\n'")
    assert "could not be written to standard output: [Errno 32]" in said


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
        seen = _read_until(master, b"at once\r\n")
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


def _wait_until_full(pipe: int) -> None:
    held = bytearray(4)
    while int.from_bytes(held, sys.byteorder) + PIPE_BUF <= fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ):
        time.sleep(0.01)
        fcntl.ioctl(pipe, termios.FIONREAD, held)


@linux_only
@pytest.mark.parametrize("another", [True, False])
def test_interrupt_while_output_is_passed_on_loses_nothing(another: bool) -> None:
    code = f"""
        tap = open_tap(LINE)
        for i in range(30000): os.write(1, b"%06d user\\nLIB x\\n" % i)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
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
        assert process.stdout is not None
        assert process.stderr is not None
        _wait_until_full(process.stdout.fileno())
        process.send_signal(signal.SIGALRM)
        assert process.stderr.read(11) == b"interrupted"
        out, _ = process.communicate(b"\n", timeout=60)
    expected = b"".join(b"%06d user\n" % i for i in range(30000))
    assert out == expected + b"last\n" * another
