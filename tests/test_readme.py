"""The README and the guides tell the truth: their Python examples run, on tiny models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from otlp_server import serving

ROOT = Path(__file__).parents[1]
TYPED = ROOT / "tests" / "typing" / "readme.py"

README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = ["README.md", *(f"docs/{name}.md" for name in ("measure", "llm", "server", "viewers"))]
EXAMPLES = [
    example
    for page in SHOWN
    for example in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
]
PREAMBLE = TYPED.read_text(encoding="utf-8").split(EXAMPLES[0])[0]


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    monkeypatch.chdir(tmp_path)  # the examples save files
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(PREAMBLE, str(TYPED), "exec"), names)
    return names


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


def test_the_readme_is_short_and_begins_with_a_picture() -> None:
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 900
    assert "![" in README.partition("```")[0]
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README):
        assert (ROOT / picture).exists()


def test_the_typed_file_holds_the_examples_word_for_word() -> None:
    typed = TYPED.read_text(encoding="utf-8")
    assert [example for example in EXAMPLES if example not in typed] == []


@pytest.mark.slow
def test_the_examples_run_one_after_the_other(
    namespace: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as jaeger:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{jaeger.port}")
        for number, example in enumerate(EXAMPLES):
            exec(compile(example, f"example {number + 1}", "exec"), namespace)
    assert jaeger.accepted.total() == len(namespace["exporter"].get_finished_spans()) > 1
    assert "convolution" in namespace["calls"]["name"]
    assert "Linear" in capsys.readouterr().out
    assert namespace["slowest"].height == 10
    assert (Path.cwd() / "model.xsp").exists()


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_into_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text("utf-8"))
    targets = [(page.parent / file if file else page, heading) for file, heading in links]
    assert [file for file, _ in targets if not file.exists()] == []
    linked = [(file, heading) for file, heading in targets if heading and file.suffix == ".md"]
    assert [(file, heading) for file, heading in linked if heading not in anchors(file)] == []


def anchors(page: Path) -> set[str]:
    """Return the names by which GitHub finds the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}
