"""Decodes a CTF trace by babeltrace2, which prints its events, and makes a table of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.text import counted, printable

EVENT_SCHEMA: dict[str, Any] = {
    "time_ns": pl.Int64,  # since 1970, if the clock of the trace tells
    "event": pl.String,
    "cpu": pl.Int64,
    "tid": pl.Int64,  # from the event's context, null where that lacks it
    "thread_name": pl.String,
    "next_tid": pl.Int64,  # of `sched_switch`
    "label": pl.String,  # fields `name` or, for functions, `addr`
    "kind": pl.Int64,  # fields of xsp:begin and xsp:end; place among all kinds
    "span": pl.Int64,
    "parent": pl.Int64,
    "latency_ns": pl.Int64,
}
_OPTIONS = ("--clock-seconds", "--no-delta", "--names=all", "--fields=emf", "--color=never")
_PIECE = 1 << 25  # bytes of text that are parsed at once
# Numbers are looked for in lines without quoted texts, which may hold anything.
_TEXT = r'"(?:[^"\\]|\\.)*"'
_HEAD = (
    r"^timestamp = (?<seconds>-?\d+)\.(?<ns>\d{9}), "
    r"name = (?<event>.+?)(?:, (?:model|stream|event)\.|$)"
)
_OWN = (
    r"\bevent\.fields = \{ kind = \( .*?: container = (?<kind>\d+) \), level = \d+, "
    r"span = (?<span>\d+), parent = (?<parent>\d+), latency_ns = (?<latency_ns>-?\d+), "
)
_NUMBERS = {
    "cpu": r"\bstream\.packet\.context = \{[^}]*?\bcpu_id = (\d+)",
    "tid": r"\bevent\.context = \{[^}]*?\bv?tid = (-?\d+)",
    "next_tid": r"\bevent\.fields = \{[^}]*?\bnext_tid = (-?\d+)",
    "ended": r"\bevent\.fields = \{ span = (\d+) \}$",
}
_ADDRESS = r"\bevent\.fields = \{ addr = (0x[0-9A-Fa-f]+)"
_THREAD = rf"\bprocname = ({_TEXT})"
# At the end of a line, else anywhere in it; a search from its beginning takes long.
_NAME = rf"\bname = ({_TEXT}) \}}$"
_NAME_ANYWHERE = rf'^(?:[^"]|{_TEXT})*?\bevent\.fields = \{{(?:[^"]|{_TEXT})*? name = ({_TEXT})'
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)")
_ESCAPED = {"a": "\a", "b": "\b", "e": "\33", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ERROR = re.compile(r"^\S+ \S+ +\d+ +\d+ E .*?\] (.*?)(?:: [\w-]+=.*)?$", re.MULTILINE)
_LOST = re.compile(r"Tracer (?:may have )?discarded (\d*)")


@dataclass(frozen=True, slots=True)
class Printed:
    """What babeltrace2 says of a trace.

    Attributes:
        events: Its events, in the columns of `EVENT_SCHEMA` and the order of their times.
        faults: Sentences on what is missing.
    """

    events: pl.DataFrame
    faults: tuple[str, ...]


def printed(trace: Path) -> Printed:
    """Decode the trace in a folder as far as it is whole.

    Raises:
        TraceFormatError: babeltrace2 is not installed.
    """
    program = shutil.which("babeltrace2")
    if program is None:
        raise TraceFormatError(
            f"{trace} is a trace in CTF, which babeltrace2 decodes, and there is none on the PATH. "
            "Install the package babeltrace2 of your system (apt install babeltrace2)."
        )
    command = [program, *_OPTIONS, str(trace.absolute())]
    parts, unread = [pl.DataFrame(schema=EVENT_SCHEMA)], 0
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        assert process.stdout is not None
        for lines in _pieces(process.stdout):
            frame = _parsed(lines)
            parts.append(frame)
            unread += len(lines) - frame.height
        process.wait()
        said.seek(0)
        errors = said.read().decode("utf-8", "replace")
    return Printed(pl.concat(parts), tuple(_faults(trace, process.returncode, errors, unread)))


def _faults(trace: Path, code: int, errors: str, unread: int) -> Iterator[str]:
    if code:
        error = _ERROR.search(errors)
        why = printable(error[1] if error else errors.strip().partition("\n")[0] or f"exit {code}")
        yield (
            f"babeltrace2 stopped in {trace} ({why}); what follows is missing. Record again, or "
            "copy the folder anew."
        )
    if lost := _LOST.findall(errors):
        yield (
            f"the tracer lost events at {counted(len(lost), 'place')} of {trace} "
            f"({sum(int(number or 0) for number in lost):,} are counted). Record with larger "
            "buffers."
        )
    if unread:
        yield f"{counted(unread, 'line')} that babeltrace2 printed of {trace} are no events"


def _pieces(file: IO[bytes]) -> Iterator[list[str]]:
    """Yield the lines of a text, many at once."""
    rest = b""
    while piece := file.read(_PIECE):
        whole, newline, rest = (rest + piece).rpartition(b"\n")
        if newline:
            yield whole.decode("utf-8", "replace").split("\n")
    if rest:
        yield [rest.decode("utf-8", "replace")]


def _parsed(lines: list[str]) -> pl.DataFrame:
    """Return the events in lines, without those that are none."""
    line = pl.Series("line", lines, pl.String)
    bare = line.str.replace_all(_TEXT, '""')
    head, own = (bare.str.extract_groups(each).struct.unnest() for each in (_HEAD, _OWN))
    numbers = [bare.str.extract(pattern).alias(name) for name, pattern in _NUMBERS.items()]
    frame = head.hstack(own).hstack(numbers).with_columns(line=line, bare=bare)
    frame = frame.drop_nulls("event").with_columns(
        pl.col("seconds", "ns", *own.columns, *_NUMBERS).cast(pl.Int64, strict=False),
        name=pl.col("line").str.extract(_NAME),
        # Only xsp's own threads need names, and only those of devices.
        thread_name=pl.when(pl.col("tid").str.starts_with("-"))
        .then(pl.col("line")).str.extract(_THREAD),
        address=pl.col("bare").str.extract(_ADDRESS),
    )  # fmt: skip
    elsewhere = pl.col("name").is_null() & pl.col("bare").str.contains(' name = ""', literal=True)
    anywhere = pl.when(elsewhere).then(pl.col("line")).str.extract(_NAME_ANYWHERE)
    frame = frame.with_columns(name=pl.coalesce("name", anywhere))
    texts = [_unquoted(frame[name]) for name in ("name", "thread_name")]
    return frame.with_columns(*texts).select(
        # A time before the clock's 0 has one sign for both parts.
        time_ns=pl.col("seconds") * 1_000_000_000
        + pl.col("ns")
        * pl.when(pl.col("line").str.starts_with("timestamp = -")).then(-1).otherwise(1),
        event="event",
        cpu="cpu",
        tid="tid",
        thread_name="thread_name",
        next_tid="next_tid",
        label=pl.coalesce("name", "address"),
        kind="kind",
        span=pl.coalesce("span", "ended"),
        parent="parent",
        latency_ns="latency_ns",
    )


def _unquoted(texts: pl.Series) -> pl.Series:
    r"""Return texts without the quotes and escapes of babeltrace2; each is made once.

    >>> _unquoted(pl.Series(['"a\\n\\x01"', None])).to_list()
    ['a\n\x01', None]
    """

    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)

    known = {text: _ESCAPE.sub(character, text[1:-1]) for text in texts.drop_nulls().unique()}
    return texts.replace_strict(known, default=None, return_dtype=pl.String)
