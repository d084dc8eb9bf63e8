"""Profiles tests: `pytest --xsp`, a fixture that measures, and one that fails on a slowdown.

pytest loads this module where xsp is installed, so it imports only pytest at the top.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xsp.trace import Trace

_PROPERTY = "xsp"  # of reports, which reach pytest-xdist's controller
_SLOWEST = 10  # tests that the summary names
_MARKDOWN_ROWS = 30
_LONGEST = 150  # characters of a file's name


@dataclass(frozen=True, slots=True)
class _Profiled:
    """What the summary says of one trace of a test."""

    test: str
    time: str
    latency_ns: float
    next: str
    path: str


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of xsp to pytest's."""
    group = parser.getgroup("xsp", "profiles by xsp")
    group.addoption("--xsp", action="store_true", help="Profile each test, and save its trace.")
    group.addoption(
        "--xsp-levels", default="2", metavar="LEVELS", help="What to record (default: 2)."
    )
    group.addoption(
        "--xsp-folder", default="xsp-traces", metavar="DIR", help="Folder for the traces."
    )
    group.addoption(
        "--xsp-markdown",
        metavar="FILE",
        help="Append a summary in Markdown, for example to $GITHUB_STEP_SUMMARY.",
    )
    group.addoption(
        "--xsp-update", action="store_true", help="Write the baselines of assert_not_slower."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse levels and files that there are not, before any test runs."""
    folder = Path(config.rootpath, config.getoption("--xsp-folder"))
    if folder.exists() and not folder.is_dir():
        raise pytest.UsageError(f"--xsp-folder is a file ({folder}). Name a folder.")
    summary = config.getoption("--xsp-markdown")
    if summary and not Path(summary).absolute().parent.is_dir():
        raise pytest.UsageError(f"--xsp-markdown: there is no folder for {summary}. Make it first.")
    if config.getoption("--xsp"):
        from xsp.record.session import settings_of  # noqa: PLC0415

        try:
            settings_of(config.getoption("--xsp-levels"))
        except ValueError as error:
            raise pytest.UsageError(f"--xsp-levels: {error}") from None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Profile the call of a test, unless the test measures by itself."""
    measures = "xsp_measure" in getattr(item, "fixturenames", ())
    if not item.config.getoption("--xsp") or measures:
        yield
        return
    import xsp  # noqa: PLC0415

    with xsp.profile(
        item.config.getoption("--xsp-levels"),
        name=item.name,
        progress=False,
        repeat=False,
        on_busy="skip",
    ) as prof:
        yield
    try:
        trace = prof.trace
    except xsp.MeasurementError:  # the test profiles by itself
        return
    _keep(item, trace)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name the slowest tests, and write the summary in Markdown."""
    found = [
        _Profiled(**value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if not found:
        return
    found.sort(key=lambda each: -each.latency_ns)
    terminalreporter.section("xsp: slowest tests")
    for each in found[:_SLOWEST]:
        terminalreporter.write_line(f"{each.time:>12}  {each.test}")
    slowest = found[0]
    if slowest.next:
        terminalreporter.write_line(f"look next in {slowest.test}: {slowest.next}")
    terminalreporter.write_line(f"see it with: xsp show '{slowest.path}'")
    if path := config.getoption("--xsp-markdown"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(_markdown(found))


def _markdown(found: list[_Profiled]) -> str:
    """Draw a table of the slowest tests, as GitHub shows it."""
    rows = [
        f"| `{each.test}` | {each.time} | {each.next or '-'} | `{each.path}` |".replace("\n", " ")
        for each in found[:_MARKDOWN_ROWS]
    ]
    left = len(found) - len(rows)
    more = [f"| {left:,} quicker tests | | | |"] if left > 0 else []
    head = [
        "### Slowest tests (xsp)",
        "",
        "| test | time | look next | trace |",
        "|---|--:|---|---|",
    ]
    return "\n".join([*head, *rows, *more, ""]) + "\n"


@pytest.fixture
def xsp_measure(request: pytest.FixtureRequest) -> Callable[..., Trace]:
    """A function that measures a call as `xsp.measure` does, and saves the trace.

    Example:
        A test of a model::

            def test_latency(xsp_measure):
                trace = xsp_measure(model, x, levels=1)
                assert trace.root.latency_ns < 5e6
    """
    import xsp  # noqa: PLC0415

    def measure(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Trace:
        trace = xsp.measure(function, *args, **{"progress": False, **kwargs})
        _keep(request.node, trace)
        return trace

    return measure


@pytest.fixture
def assert_not_slower(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that fails a test whose trace is significantly slower than a saved one.

    Example:
        The baseline lies beside the test's file. `pytest --xsp-update` writes it::

            def test_no_slowdown(xsp_measure, assert_not_slower):
                assert_not_slower(xsp_measure(model, x, levels=1), "model.xsp", by="5%")
    """

    def check(trace: Trace, baseline: str | os.PathLike[str], *, by: str = "5%") -> None:
        path = request.path.parent / baseline
        if request.config.getoption("--xsp-update"):
            path.parent.mkdir(parents=True, exist_ok=True)
            trace.save(path)
            return
        if not path.exists():
            pytest.fail(
                f"The baseline does not exist ({path}). Write it: pytest --xsp-update.",
                pytrace=False,
            )
        _compare(trace, path, by)

    return check


def _compare(trace: Trace, path: Path, by: str) -> None:
    """Fail if a trace is slower than a baseline by more than chance and the limit."""
    from xsp.answer.comparison import compare, parse_condition  # noqa: PLC0415
    from xsp.trace import load  # noqa: PLC0415

    baseline = load(path)
    hosts = [each.metadata.get("environment", {}).get("host_id") for each in (baseline, trace)]
    if None not in hosts and hosts[0] != hosts[1]:
        pytest.fail(
            f"The baseline is of another machine ({path}), and times of machines do not compare. "
            "Measure it here: pytest --xsp-update, on the code before the change.",
            pytrace=False,
        )
    compared = compare(baseline, trace, names=["baseline", "test"])
    for outcome in parse_condition(f"latency > {by}").outcomes(compared):
        if outcome.holds is not False:
            pytest.fail(f"{outcome.text}\n\n{compared.text(rows=10)}", pytrace=False)
        if outcome.unseen:
            pytest.fail(outcome.unseen, pytrace=False)


def _file_name(test: str) -> str:
    """Name a file after a test; tests whose names differ have files that differ.

    >>> _file_name("tests/test_it.py::test_a[1]"), _file_name("test_it.py::test_a[x/y]")
    ('tests-test_it.py-test_a[1]', 'test_it.py-test_a[x-y]-70e265')
    """
    file, _, rest = test.partition("::")
    known = rest.replace("::", "-")
    safe = re.sub(r"[^\w.=,\[\]-]+", "-", known)
    name = f"{file.replace('/', '-')}-{safe}"
    if safe == known and len(name) <= _LONGEST:
        return name
    return f"{name[-_LONGEST:].strip('-.')}-{blake2b(test.encode(), digest_size=3).hexdigest()}"


def _keep(item: pytest.Item, trace: Trace) -> None:
    """Save a trace under its test's name, and note it for the summary."""
    from xsp.integration.training import verdict  # noqa: PLC0415
    from xsp.text import duration  # noqa: PLC0415

    folder = Path(item.config.rootpath, item.config.getoption("--xsp-folder"))
    folder.mkdir(parents=True, exist_ok=True)
    name = _file_name(item.nodeid)
    taken = sum(each[0] == _PROPERTY for each in item.user_properties)
    path = folder / (f"{name}-{taken + 1}.xsp" if taken else f"{name}.xsp")
    trace.save(path)
    latency = trace.root.latency_ns or 0.0
    last = verdict(trace).splitlines()[-1]
    advice = last.removeprefix("look next: ") if last.startswith("look next: ") else ""
    shown = os.path.relpath(path, item.config.invocation_params.dir)
    row = _Profiled(item.nodeid, duration(latency), latency, advice, shown)
    value: Mapping[str, Any] = asdict(row)
    item.user_properties.append((_PROPERTY, value))
