"""The words for users: short sentences with an actor, addressed to the reader, nothing archaic.

Counted are the README, the guides, and the help of every command, without code, tables, headings
and lists of options.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from xsp.show.cli.app import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LONG = 30  # words of a sentence
BANNED = (
    "anew", "mend", "quieten", "to be had", "for want of", "oftener", "whoever", "hardly",
    "would change that", "tells apart", "rests on", ", for ",
)  # fmt: skip
_FREE = re.compile(r"(?:What|Where|Who|Whoever|Of which|Which)\b")


# Rooms whose messages have still to be rewritten.
_LATER = ("reading/importers", "answer/analyses", "answer/comparison")


def guides() -> list[Path]:
    """Return the pages that the index lists as tutorials and how-to guides."""
    index = (DOCS / "index.md").read_text("utf-8")
    names: list[str] = []
    for caption in ("Tutorials", "How-to guides"):
        part = index.split(f":caption: {caption}\n")[1].split("```")[0]
        names += part.split()
    return [DOCS / f"{name}.md" for name in names]


def prose(text: str) -> str:
    """Return a page's text without code, tables, headings, pictures and comments.

    >>> prose("# Head\\n\\nRead `x` in [it](a.md).\\n\\n| a |\\n")
    'Read x in it.'
    """
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.S | re.M)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^(?:#|\||!\[|<|\$\$).*$", "\n", text, flags=re.M)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]*)`", lambda code: code[1].replace(".", "·"), text)
    text = re.sub(r"\*\*|(?<!\w)\*|\*(?!\w)", "", text)
    text = re.sub(r"^ *(?:-|\d+\.) ", "\n", text, flags=re.M)
    return text.strip()


def sentences(text: str) -> list[str]:
    """Return the sentences of prose; a paragraph or an item of a list ends one as well."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        split = re.split(r"(?<=[.!?:])\s+", " ".join(paragraph.split()))
        found += [sentence for sentence in split if len(sentence.split()) > 1]
    return found


def helps(command: click.Command, name: str = "xsp") -> dict[str, str]:
    """Return the help of a command, of its options, and of all commands in it, by name."""
    lines = [command.help or "", command.short_help or ""]
    lines += [option.help or "" for option in command.params if isinstance(option, click.Option)]
    text = "\n\n".join(re.sub(r"^\x08?\n?(?: {2,}.*\n?)+", "", line, flags=re.M) for line in lines)
    found = {name: "\n\n".join(part for part in text.split("\n\n") if "\b" not in part)}
    if isinstance(command, click.Group):
        for each, inner in command.commands.items():
            if not inner.hidden:
                found |= helps(inner, f"{name} {each}")
    return found


PAGES = {page.name: prose(page.read_text("utf-8")) for page in [ROOT / "README.md", *guides()]}
HELP = "\n\n".join(helps(cli).values())
TEXTS = {**PAGES, "help": HELP}


@pytest.mark.parametrize("name", TEXTS)
def test_sentences_are_short(name: str) -> None:
    lengths = [len(sentence.split()) for sentence in sentences(TEXTS[name])]
    assert sum(lengths) / len(lengths) <= 16
    long = [one for one in sentences(TEXTS[name]) if len(one.split()) > LONG]
    assert len(long) <= max(0.05 * len(lengths), 1), long


@pytest.mark.parametrize("texts", [[*PAGES.values()], [HELP]], ids=["pages", "help"])
def test_no_sentence_opens_with_a_free_relative(texts: list[str]) -> None:
    found = [s for text in texts for s in sentences(text)]
    free = [s for s in found if _FREE.match(s) and not s.endswith("?")]
    assert len(free) <= 0.01 * len(found), free


def test_the_reader_is_addressed() -> None:
    words = " ".join(PAGES.values()).lower().split()
    you = sum(word.strip(".,:;()'") in ("you", "your", "yours") for word in words)
    assert 1000 * you / len(words) >= 8


@pytest.mark.parametrize("name", TEXTS)
def test_no_archaic_or_vague_words(name: str) -> None:
    text = " ".join(TEXTS[name].lower().split())
    assert [word for word in BANNED if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)] == []


def messages(file: Path) -> Iterator[str]:
    """Yield the texts of several words in a module that are no docstrings; parts joined by `…`."""
    tree = ast.parse(file.read_text("utf-8"))
    apart = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    inside = [part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
              for part in node.values]  # fmt: skip
    skipped = {id(node) for node in (*apart, *inside)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        texts = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
        text = "".join(each for each in texts if isinstance(each, str))
        if len(text.split()) > 2:
            yield text


def test_messages_have_no_archaic_or_vague_words() -> None:
    files = [*(ROOT / "xsp").rglob("*.py"), *(ROOT / "levels").rglob("*.py")]
    said = [
        (file.name, word, text)
        for file in files
        if not any(room in file.as_posix() for room in _LATER)
        for text in messages(file)
        for word in BANNED
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text.lower())
    ]
    assert not said


@pytest.mark.parametrize("name", PAGES)
def test_spelling_is_american(name: str) -> None:
    british = r"\w*(?:ormalis|erialis|ynchronis|ptimis|ummaris|ecognis|haracteris|isation\b)\w*"
    british += r"|(?:colour|favour|neighbour|behaviour|centre|modell|labell)\w*"
    found = set(re.findall(british, PAGES[name].lower())) - {"recognises"}  # a name of the code
    assert found == set()
