"""Fixtures for every test: nothing stays behind, and CI skips nothing that it has.

It also says how long hypothesis may look for a counterexample: `make test` takes the
profile `quick`, CI `ci`, everything else hypothesis's own, of a hundred examples.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from xsp.record.session import disturbance

# What CI may have no hardware or privilege for, as markers: skips of such tests are honest there.
ABSENT_IN_CI = ("gpu", "perfmon")
# What a test's reason to be skipped says that needs recordings of others: the project may not hold
# them, and CI runs these tests where the recordings lie beside the project, or where this says.
TRACES = "XSP_TRACES"

# Variables that others set for good: pytest for the phase of the test, polars when it
# is imported, PyTorch when it compiles.
SET_BY_OTHERS = (
    *("PYTEST_CURRENT_TEST", "_RJEM_MALLOC_CONF"),
    *("TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TRITON_"),
)

# Modules and tools of `sys.monitoring` by which coverage and hypothesis watch tests.
WATCH_TESTS = ("coverage", "hypothesis", "scrutineer")

# Some libraries close their connections in threads of their own, a moment after they were told to.
CLOSING_S = 2.0

LEFT_OUT = pytest.StashKey[int]()

# A deadline per example fails honest tests where other programs run. In CI, and in `make test`,
# hypothesis takes its own profile `ci`, which has none, and the same examples every time: what
# passes once passes again. More and other examples are for people (`make test-slow`).
STEADY = hypothesis.settings.get_profile("ci")
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("quick", STEADY, max_examples=10)
hypothesis.settings.register_profile("ci", STEADY, max_examples=25)

TORCH_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks_always_called",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)

# A stand-in for NVIDIA's module, which has the same name.
collect_ignore = ["levels/monitor/fake"]


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be tested where the caller ignores it, and oneDNN on every processor.

    A shell's background jobs ignore Ctrl-C; TensorFlow calls oneDNN unasked on some processors.
    """
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let coverage leave out the tests that search for counterexamples.

    They run many times what tests of known answers run as well, and coverage makes that slower.
    """
    if hypothesis.is_hypothesis_test(getattr(item, "function", None)):
        item.add_marker(pytest.mark.no_cover)


def pytest_collection_finish() -> None:
    """Let collections of garbage pass over what pytest collected: they take a third of the time.

    What test modules made when they were imported is then unknown to `gc.get_objects` and
    `gc.get_referrers`: what xsp is to find by these is made in the test.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_stays_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test after which the process is not as it was before."""
    torch_before = _torch_state()
    before = _process_state()
    sockets = _sockets()
    yield
    _join_finished_threads(before["threads"])
    after = _process_state()
    after["threads"] |= before["threads"]  # one that has ended meanwhile is not left behind
    changed = _differences(before, after)
    changed += _sockets_left(sockets)
    if torch_before is None:
        changed += _traces_of_xsp_in_torch()
    else:
        changed += _differences(torch_before, _torch_state() or {})
    if changed:
        _restore(before)
        pytest.fail(f"{request.node.name} left behind: " + "; ".join(changed), pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def what_watches_the_tests_is_no_warning() -> Iterator[None]:
    """Let no trace of a test tell of coverage or of hypothesis, which watch the tests."""
    hooks = disturbance._python_hooks

    def others() -> Iterator[tuple[str, str]]:
        return (hook for hook in hooks() if hook[1] not in WATCH_TESTS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disturbance, "_python_hooks", others)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_socket_stays_open() -> Iterator[None]:
    """Fail the last test where a fixture of a module or of the session leaves a socket open."""
    before = _sockets()
    yield
    left = _sockets_left(before)
    if left:
        pytest.fail("fixtures left behind: " + "; ".join(left), pytrace=False)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that leaves descriptor 1 or 2 pointing elsewhere.

    pytest's own capturing puts both right before any fixture ends, so this is
    looked at inside of it.
    """
    before = _descriptor(1), _descriptor(2)
    try:
        return (yield)
    finally:
        for number, was in zip((1, 2), before, strict=True):
            if _descriptor(number) != was:
                pytest.fail(f"{item.name} left behind: redirected descriptor {number}")


def _process_state() -> dict[str, Any]:
    return {
        "threads": frozenset(threading.enumerate()),
        "environment": _environment(),
        "sys.settrace": _trace_function(),
        "sys.setprofile": sys.getprofile(),
        "open files": _open_files(),
        "performance events": _performance_events(),
        "armed tracer": _tracer_armed(),
        "hooked functions": _hooked_functions(),
        "hooks in JAX": _jax_hooks(),
    }


def _trace_function() -> object:
    """Return the function of `sys.settrace`; None for coverage's, of which each start has one."""
    function = sys.gettrace()
    return None if type(function).__module__.startswith("coverage") else function


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(SET_BY_OTHERS)}


def _descriptor(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


def _open_files() -> frozenset[str]:
    """Paths of the regular files that are open, as far as the system tells."""
    paths = set()
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if "xsp" in os.path.basename(path):
            paths.add(path)
    return frozenset(paths)


def _performance_events() -> int:
    """Return how many events of the kernel are open; they live as long as a measurement does."""
    numbers = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ()
    found = [number for number in numbers if _link(number) == "anon_inode:[perf_event]"]
    if found:
        gc.collect()  # a measurement that failed may be known to its exception, and that to itself
    return sum(_link(number) == "anon_inode:[perf_event]" for number in found)


def _link(number: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")
    return ""


def _sockets() -> frozenset[str]:
    """Return the sockets that are open.

    The system is asked: a socket that some module still refers to is one that nobody
    warns of before the interpreter ends, when no test can fail of it any more.
    """
    found = set()
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return frozenset(name for name in found if name.startswith("socket:"))


def _sockets_left(before: frozenset[str]) -> list[str]:
    until = time.monotonic() + CLOSING_S
    while left := _sockets() - before:
        if time.monotonic() > until:
            return [f"open sockets ({', '.join(sorted(left))})"]
        time.sleep(0.005)
    return []


def _tracer_armed() -> bool:
    tracer = sys.modules.get("xsp.tracer")
    return tracer is not None and tracer._recorder is not None


def _hooked_functions() -> frozenset[str]:
    hooked = sys.modules.get("xsp_levels.framework.torch.program.loop")
    hooks = hooked.loop()._hooks if hooked is not None and hooked.loop.cache_info().currsize else {}
    torch = frozenset(function.__qualname__ for function, hook in hooks.items() if hook.placed)
    return torch | _hooked_functions_of_tensorflow()


def _hooked_functions_of_tensorflow() -> frozenset[str]:
    entry = sys.modules.get("xsp_levels.framework.tensorflow.program.entry")
    keras = sys.modules.get("xsp_levels.framework.keras.entry_point")
    layer = keras.call_entry_point() if keras is not None else None
    hooked = entry.entry_points().hooked if entry is not None else frozenset()
    return hooked | ({"Layer.__call__"} if layer and not layer.untouched else frozenset())


def _jax_hooks() -> frozenset[str]:
    """Return the names of what stands in for JAX's own; empty while nobody has imported JAX."""
    found = {repr(each) for each in sys.meta_path if "xsp" in type(each).__module__}
    jitted = getattr(sys.modules.get("jaxlib._jax"), "PjitFunction", None)
    if jitted is not None and inspect.isfunction(vars(jitted)["__call__"]):
        found.add("PjitFunction.__call__")
    if jitted is not None and not jitted.__flags__ & 1 << 11:
        found.add("PjitFunction without vectorcall")
    monitoring = sys.modules.get("jax._src.monitoring")
    listeners = getattr(monitoring, "_event_duration_secs_listeners", ())
    found |= {"a listener" for each in listeners if "xsp" in str(each.__module__)}
    profiler = getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)
    if getattr(profiler, "profile_session", None) is not None:
        found.add("running profiler")
    return frozenset(found)


def _torch_state() -> dict[str, Any] | None:
    """State of PyTorch that xsp changes; None while nobody has imported PyTorch."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return None
    module = sys.modules["torch.nn.modules.module"]
    return {
        "nn.Module.__call__": torch.nn.Module.__call__,
        "code of nn.Module.__call__": torch.nn.Module.__call__.__code__,
        "globals of nn.Module.__call__": frozenset(vars(module)),
        "torch.autograd.backward": torch.autograd.backward,
        "running torch profiler": torch.autograd._profiler_enabled(),
        **{name: tuple(getattr(module, name)) for name in TORCH_HOOKS},
        "optimizer step hooks": _optimizer_hooks(),
    }


def _optimizer_hooks() -> tuple[Any, ...]:
    optimizer = sys.modules.get("torch.optim.optimizer")
    return (
        ()
        if optimizer is None
        else (
            *optimizer._global_optimizer_pre_hooks,
            *optimizer._global_optimizer_post_hooks,
        )
    )


def _traces_of_xsp_in_torch() -> list[str]:
    """Traces that xsp left in PyTorch, where the test itself imported PyTorch first."""
    state = _torch_state()
    if state is None:
        return []
    left = [name for name in TORCH_HOOKS if state[name]]
    left += [name for name in state["globals of nn.Module.__call__"] if "xsp" in name]
    if state["running torch profiler"]:
        left.append("running torch profiler")
    return left


def _join_finished_threads(known: frozenset[threading.Thread]) -> None:
    # A thread that has done its work may need a moment more to be gone.
    for thread in set(threading.enumerate()) - known:
        if thread is not threading.current_thread():
            thread.join(timeout=1.0)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{name} ({_describe(before[name], after.get(name))})"
        for name in before
        if before[name] != after.get(name)
    ]


def _describe(before: Any, after: Any) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        return ", ".join(sorted(changed))
    if isinstance(before, frozenset) and isinstance(after, frozenset):
        return ", ".join(sorted(str(item) for item in before ^ after))
    return f"{before!r} became {after!r}"


def _restore(before: dict[str, Any]) -> None:
    """Undo what would make the next tests fail as well, so that one name stands in the log."""
    if _trace_function() is not before["sys.settrace"]:
        sys.settrace(before["sys.settrace"])
    sys.setprofile(before["sys.setprofile"])
    for name in _environment().keys() - before["environment"].keys():
        del os.environ[name]
    os.environ.update(before["environment"])


def _skipped_wrongly(markers: set[str], reason: str) -> bool:
    absent = markers & set(ABSENT_IN_CI) or TRACES in reason
    return os.environ.get("CI") == "true" and not absent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, turn the skip of a test that CI could have run into a failure."""
    report = yield
    markers = {marker.name for marker in item.iter_markers()}
    expected_failure = hasattr(report, "wasxfail")
    if report.skipped and not expected_failure and _skipped_wrongly(markers, _reason(report)):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, which has what it needs: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, do the same for a whole file that skips itself while it is collected."""
    report = yield
    markers = {marker.name for marker in collector.iter_markers()}
    if report.outcome == "skipped" and _skipped_wrongly(markers, _reason(report)):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, which has what it needs: {_reason(report)}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return str(report.longrepr)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the tests that `make test` leaves out: the slow ones, and those that compare times."""
    left_out = [
        item
        for item in items
        if item.get_closest_marker("slow") or item.get_closest_marker("timing")
    ]
    if left_out and "not slow" in left_out[0].config.getoption("markexpr"):
        stash = left_out[0].config.stash
        stash[LEFT_OUT] = stash.get(LEFT_OUT, 0) + len(left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the number to the process that writes the summary, where tests run in several.

    Garbage is collected as usual again: libraries of C++ complain of objects that outlive them.
    """
    gc.unfreeze()
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["left out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear it there; every process leaves out the same tests."""
    told = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = told.get("left out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were left out, and what runs them."""
    left_out = terminalreporter.config.stash.get(LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(
            f"{left_out} tests were left out, for they are slow or compare times: "
            "`make test-all` runs them as well."
        )


@pytest.fixture(scope="module")
def compiled_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for what is compiled once, such as C++ headers."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture
def compiler(
    monkeypatch: pytest.MonkeyPatch, compiled_code: Path
) -> Iterator[Callable[[Any], Any]]:
    """Return torch.compile with a cache of its own, and no processes that stay behind."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    inductor = pytest.importorskip(
        "torch._inductor.config", reason="needs Inductor: pip install 'torch>=2.4'"
    )
    if importlib.util.find_spec("tqdm") is not None:  # it would start a thread for good
        monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled_code))
    import torch  # noqa: PLC0415

    torch._dynamo.reset()
    with inductor.patch(compile_threads=1):
        yield torch.compile
    torch._dynamo.reset()
