"""docs/architecture.md says what the folders, the doors and import-linter say."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SMALLEST, LARGEST = 4, 12  # files in a room


def folders() -> dict[str, Path]:
    return {path.parent.name: path.parent for path in (ROOT / "xsp").glob("*/__init__.py")}


def documented_rooms() -> list[str]:
    section = PAGE.split("## Rooms")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def layers() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (rooms,) = (
        one for one in contracts if one["type"] == "layers" and one["containers"] == ["xsp"]
    )
    return [name.strip() for layer in rooms["layers"] for name in layer.split("|")]


def test_the_rooms_of_the_page_are_the_folders() -> None:
    assert sorted(documented_rooms()) == sorted(folders())


def test_the_rooms_of_the_page_stand_in_the_order_that_is_enforced() -> None:
    assert documented_rooms() == [name for name in layers() if name in folders()]


def test_modules_beside_the_rooms_are_named() -> None:
    beside = {path.stem for path in (ROOT / "xsp").glob("*.py")} - {"__init__", "__main__"}
    text = PAGE.split("Beside the rooms")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", text)) >= beside


def test_no_more_modules_lie_beside_the_rooms_than_in_one() -> None:
    assert len(list((ROOT / "xsp").glob("*.py"))) <= LARGEST


@pytest.mark.parametrize("room", sorted(folders()))
def test_a_room_is_neither_a_drawer_nor_a_closet(room: str) -> None:
    many = [folder for folder in (folders()[room], *folders()[room].glob("*/")) if folder.is_dir()]
    for folder in many:
        files = list(folder.glob("*.py"))
        assert not files or SMALLEST <= len(files) <= LARGEST, (folder.name, len(files))


def test_what_the_walk_names_is_in_its_room() -> None:
    walk = PAGE.split("## One evaluation")[1].split("\n## ")[0]
    names = set(re.findall(r"`(\w+)\.(\w+)", walk)) - {("xsp", "measure")}
    rooms = {(room, name) for room, name in names if room in folders()}
    assert len(rooms) >= 6
    for room, name in rooms:
        modules = [f"xsp.{room}.{path.stem}" for path in folders()[room].glob("[!_]*.py")]
        assert any(hasattr(importlib.import_module(one), name) for one in modules), (room, name)


def test_files_that_the_page_names_are_there() -> None:
    named = re.findall(r"`((?:xsp|levels)/[\w/]+?(?:\.py|/))`", PAGE)
    assert len(named) >= 6
    assert [name for name in named if not (ROOT / name).exists()] == []
