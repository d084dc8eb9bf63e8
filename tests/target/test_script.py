from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import pytest

from xsp.errors import UnknownTargetError
from xsp.measuring.target import script

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture(autouse=True)
def main_program_is_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    monkeypatch.undo()


def test_a_script_finds_what_it_would_find_alone(write: Write, tmp_path: Path) -> None:
    (tmp_path / "neighbor.py").write_text("VALUE = 42\n")
    path = write(
        "import sys, inspect, __main__\n"
        "from neighbor import VALUE\n"
        "class Here: pass\n"
        "facts = (__name__, __file__, sys.argv, __main__.VALUE, Here.__module__, __spec__, "
        "__package__, sys.path[0], inspect.getsource(Here))\n"
    )
    ending = script.run_script(path, ["--epochs", "3", "--", "-x"])
    sys.modules.pop("neighbor")
    assert ending == script.Ending(0)
    main, argv = "__main__", [path, "--epochs", "3", "--", "-x"]
    expected = (main, path, argv, 42, main, None, None, str(tmp_path), "class Here: pass\n")
    assert sys.modules["__main__"].facts == expected


def test_main_has_the_same_globals_as_alone(write: Write) -> None:
    path = write("names = sorted(globals())\nprint(*names)\n")
    alone = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    script.run_script(path, [])
    names = set(sys.modules["__main__"].names)
    assert names == set(alone.stdout.split())


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise SystemExit(True)", 1, ""),
    ],
)
def test_the_exit_code_is_the_scripts_own(
    write: Write, capsys: pytest.CaptureFixture[str], line: str, code: int, said: str
) -> None:
    assert script.run_script(write(f"import sys\n{line}\n"), []) == script.Ending(code)
    assert capsys.readouterr() == ("", said)


def test_an_exception_is_shown_as_alone(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("def inner():\n    raise KeyError('x')\n\ninner()\n")
    alone = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    ending = script.run_script(path, [])
    assert ending.code == 1
    assert isinstance(ending.error, KeyError)
    assert capsys.readouterr().err == alone.stderr
    with pytest.raises(KeyError, match="x"):
        ending.reraise()


def test_the_scripts_own_excepthook_is_asked(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        sys.stderr.write(f"mine: {error}")

    monkeypatch.setattr(sys, "excepthook", hook)
    script.run_script(write("raise ValueError('seen')\n"), [])
    assert capsys.readouterr().err == "mine: seen"


def test_the_scripts_threads_are_waited_for(write: Write) -> None:
    path = write(
        "import threading, time\n"
        "done = []\n"
        "def work():\n    time.sleep(0.2)\n    done.append(1)\n"
        "threading.Thread(target=work).start()\n"
    )
    before = threading.active_count()
    script.run_script(path, [])
    assert sys.modules["__main__"].done == [1]
    assert threading.active_count() == before


@pytest.mark.parametrize("pool", ["ThreadPoolExecutor(2)", "ProcessPoolExecutor(2, fork)"])
def test_work_in_a_pool_that_is_left_open_is_waited_for_and_the_pool_is_not(
    write: Write, pool: str
) -> None:
    path = write(
        "import multiprocessing, time\n"
        "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\n"
        "fork = multiprocessing.get_context('fork')\n"
        f"pool = {pool}\n"
        "futures = [pool.submit(time.sleep, 0.1) for _ in range(6)]\n"
        "called = []\n"
        "def done(_):\n    time.sleep(0.1)\n    called.append(True)\n"
        "[future.add_done_callback(done) for future in futures]\n"
    )
    assert script.run_script(path, []).code == 0
    main = sys.modules["__main__"]
    assert all(future.done() for future in main.futures)
    assert main.called == [True] * 6
    assert main.pool.submit(len, "ab").result() == 2  # as what comes after a block may need it
    main.pool.shutdown()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_the_script_forks_is_told_apart(write: Write, tmp_path: Path) -> None:
    path = write(
        "import os\nchild = os.fork()\n"
        "if child:\n    os.waitpid(child, 0)\nelse:\n    raise SystemExit(5)\n"
    )
    process = os.getpid()
    ending = script.run_script(path, [])
    if os.getpid() != process:
        (tmp_path / "child").write_text(f"{ending.code} {ending.forked}")
        os._exit(0)
    assert not ending.forked
    assert (tmp_path / "child").read_text() == "5 True"


def test_a_script_that_is_not_there_is_named_with_its_neighbors(
    write: Write, tmp_path: Path
) -> None:
    write("")
    with pytest.raises(UnknownTargetError, match=r"No such file.*did you mean program\.py\?"):
        script.run_script(str(tmp_path / "programm.py"), [])


def test_only_the_users_frames_stay_in_a_traceback(write: Write) -> None:
    ending = script.run_script(write("1 / 0\n"), [])
    assert ending.error is not None
    frames = ending.error.__traceback__
    assert frames is not None
    assert frames.tb_frame.f_code.co_filename.endswith("program.py")
    assert frames.tb_next is None
    assert script.without_own_frames(None) is None
