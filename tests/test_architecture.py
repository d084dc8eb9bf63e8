"""docs/architecture.md says what the folders, the doors and import-linter say."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

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


def test_what_the_walk_names_is_in_its_room() -> None:
    walk = PAGE.split("## One step")[1].split("\n## ")[0]
    names = set(re.findall(r"`(\w+)\.(\w+)", walk)) - {("xsp", "measure")}
    rooms = {path.name: room.replace("/", ".") for room, path in folders().items()}
    named = {(rooms[room], name) for room, name in names if room in rooms}
    assert len(named) >= 6
    for room, name in named:
        folder = ROOT / "xsp" / room.replace(".", "/")
        modules = [f"xsp.{room}", *(f"xsp.{room}.{path.stem}" for path in folder.glob("[!_]*.py"))]
        assert any(hasattr(importlib.import_module(one), name) for one in modules), (room, name)


def test_files_that_the_page_names_are_there() -> None:
    named = re.findall(r"`((?:xsp|levels)/[\w/]+?(?:\.py|/))`", PAGE)
    assert len(named) >= 6
    assert [name for name in named if not (ROOT / name).exists()] == []
