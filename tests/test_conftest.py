"""The rules of conftest.py fail when they should: tests of the tests' own guard."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = (Path(__file__).parent / "conftest.py").read_text(encoding="utf-8")
QUIET = ("-p", "no:randomly", "-p", "no:cacheprovider", "-q")


def _run(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(body)
    return pytester.runpytest_subprocess(*QUIET)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("import os\ndef test_a(): os.environ['LEFT'] = '1'", "environment (LEFT)"),
        ("import sys\ndef test_a(): sys.setprofile(lambda *a: None)", "sys.setprofile"),
        (
            "import threading\n"
            "def test_a(): threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "threads",
        ),
        ("import sys\ndef test_a(): sys.settrace(lambda *a: None)", "sys.settrace"),
    ],
)
def test_what_a_test_leaves_behind_is_named(
    pytester: pytest.Pytester, body: str, named: str
) -> None:
    result = _run(pytester, body)
    result.assert_outcomes(passed=1, errors=1)
    assert named in result.stdout.str()


def test_a_redirected_descriptor_is_named(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        "import os\ndef test_a(tmp_path):\n"
        "    os.dup2(os.open(tmp_path / 'log', os.O_CREAT | os.O_WRONLY), 2)",
    )
    result.assert_outcomes(failed=1)
    assert "redirected descriptor 2" in result.stdout.str()


def test_a_tidy_test_passes(pytester: pytest.Pytester) -> None:
    _run(pytester, "def test_a(): pass").assert_outcomes(passed=1)


SKIPS = "import pytest\ndef test_a(): pytest.skip('needs something')"


@pytest.mark.parametrize(
    ("ci", "body", "outcome"),
    [
        ("true", SKIPS, {"failed": 1}),
        ("", SKIPS, {"skipped": 1}),
        ("true", SKIPS.replace("\n", "\n@pytest.mark.gpu\n"), {"skipped": 1}),
    ],
)
def test_ci_fails_on_a_skip_unless_it_lacks_the_hardware(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    ci: str,
    body: str,
    outcome: dict[str, int],
) -> None:
    monkeypatch.setenv("CI", ci)
    pytester.makeini("[pytest]\nmarkers = gpu: needs one")
    _run(pytester, body).assert_outcomes(**outcome)
