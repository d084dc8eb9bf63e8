"""docs/architecture.md says what the folders, the doors and import-linter say."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import xsp

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WINGS = ("record", "reading", "measuring", "answer", "show")
LONGEST = 600  # lines of a file


def folders() -> dict[str, Path]:
    """Return the folder of each room, by its path within xsp."""
    made = (path.parent for path in (ROOT / "xsp").glob("*/__init__.py"))
    rooms = {folder.name: folder for folder in made if folder.name not in WINGS}
    for wing in WINGS:
        for path in (ROOT / "xsp" / wing).glob("*/__init__.py"):
            rooms[f"{wing}/{path.parent.name}"] = path.parent
    return rooms


def documented_rooms() -> list[str]:
    section = PAGE.split("## Wings and rooms")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w/]+)` \|", section, flags=re.MULTILINE)


def layers(container: str) -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (rooms,) = (
        one for one in contracts if one["type"] == "layers" and one["containers"] == [container]
    )
    return [name.strip() for layer in rooms["layers"] for name in layer.split("|")]


def test_the_rooms_of_the_page_are_the_folders() -> None:
    assert sorted(documented_rooms()) == sorted(folders())


def test_the_rooms_of_the_page_stand_in_the_order_that_is_enforced() -> None:
    order = []
    for name in layers("xsp"):
        if name in WINGS:
            order += [f"{name}/{room}" for room in layers(f"xsp.{name}")]
        elif name in folders():
            order.append(name)
    assert documented_rooms() == order


def test_modules_beside_the_wings_are_named() -> None:
    beside = {path.stem for path in (ROOT / "xsp").glob("*.py")} - {"__init__", "__main__"}
    text = PAGE.split("Beside the wings")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", text)) >= beside


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    files = [*(ROOT / "xsp").rglob("*.py"), *(ROOT / "levels").rglob("*.py")]
    long = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: lines for name, lines in long.items() if lines > LONGEST} == {}


def words() -> set[str]:
    """Names of the page in backticks: files, rooms, modules, classes, and what is in them."""
    quoted = re.findall(r"`([A-Za-z_][\w./]*)`", PAGE)
    return set(quoted) - {"with", "__init__", "stack", "prof.trace", "prof.groups", "xsp.levels"}


def is_file(word: str) -> bool:
    roots = (ROOT, ROOT / "xsp", ROOT / "levels" / "xsp_levels", *folders().values())
    frameworks = ROOT / "levels" / "xsp_levels" / "framework"
    return any((folder / word).exists() for folder in (*roots, frameworks))


def names() -> Iterator[str]:
    """Every name that xsp defines, and every pair of a module, room or class and a name in it."""
    for path in (ROOT / "xsp").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        outer = {path.stem, path.parent.name} - {"__init__"}
        yield from outer
        for node in tree.body:
            inside = node.body if isinstance(node, ast.ClassDef) else ()
            for name in defined(node):
                yield name
                yield from (f"{place}.{name}" for place in outer)
            for member in inside:
                for name in defined(member):
                    yield f"{node.name}.{name}"  # type: ignore[attr-defined]
                    yield from (f"{place}.{node.name}.{name}" for place in outer)  # type: ignore[attr-defined]


def defined(node: ast.AST) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def test_every_name_of_the_page_is_a_file_or_defined() -> None:
    known = set(names()) | {f"xsp.{name}" for name in dir(xsp)}
    known |= {f"xsp.{path.stem}" for path in (ROOT / "xsp").iterdir()}
    asked = words()
    assert len(asked) > 100
    assert sorted(word for word in asked if not (word in known or is_file(word))) == []


PACKAGES = sorted(
    path.parent for top in ("xsp", "levels") for path in (ROOT / top).rglob("__init__.py")
)
WORD = re.compile(r"`([a-z]+)`")
VALUES = ("region",)  # a kind of span, which a header names


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_header_of_a_package_names_files_and_functions_that_there_are(package: Path) -> None:
    header = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    files = {path.stem for path in package.iterdir()}
    code = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py")).replace(header, "")
    unknown = [
        word
        for word in WORD.findall(header)
        if word not in files
        and word not in VALUES
        and not re.search(rf"\b(?:def|class) {word}\b|import .*\b{word}\b|^ *{word}:? ", code, re.M)
    ]
    assert not unknown
