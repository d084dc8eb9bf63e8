"""What coding agents get: briefs by their schemas, the skill, and the MCP server."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import xsp
from xsp.show.agent import brief, difference, skill
from xsp.show.cli.app import cli, run

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "xsp" / "show" / "cli" / "demo.xsp"


def check(value: Any, schema: str) -> None:
    text = (ROOT / "docs" / "schema" / f"{schema}.json").read_text("utf-8")
    Draft202012Validator(json.loads(text)).validate(json.loads(json.dumps(value)))


@pytest.fixture(scope="module")
def demo() -> xsp.Trace:
    return xsp.load(DEMO)


def program() -> xsp.Trace:
    with xsp.profile(levels=1) as prof:
        for _ in range(3):
            with prof.step("work"):
                sum(range(2000))
    return prof.trace


def test_a_brief_has_its_schema_and_the_numbers_of_the_trace(demo: xsp.Trace) -> None:
    found = brief(demo, file="demo.xsp")
    check(found, "brief-1")
    assert found["time_ns"] == demo.root.latency_ns
    assert [row["advice"] for row in found["advice"]] == demo.advice()["advice"].head(5).to_list()
    own = [row["self_ns"] for row in found["slowest"]]
    assert own == sorted(own, reverse=True)
    assert own[0] == demo.spans["self_ns"].max()
    for question in found["questions"]:
        getattr(xsp.analyses, question.replace("-", "_"))
    assert "kernel-by-name" in found["questions"]
    assert "off-cpu" not in found["questions"]


def test_a_brief_of_a_program_counts_its_steps() -> None:
    found = brief(program())
    check(found, "brief-1")
    assert [(step["name"], step["count"]) for step in found["steps"]] == [("work", 3)]
    assert len(json.dumps(found)) < 20_000


def test_a_difference_has_its_schema(demo: xsp.Trace) -> None:
    found = difference(xsp.compare(demo, demo))
    check(found, "difference-1")
    assert found["spans"] == []


def test_commands_print_briefs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(DEMO), "--json"]) == 0
    check(json.loads(capsys.readouterr().out), "brief-1")
    assert run(["analyze", str(DEMO), str(DEMO), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert run(["compare", str(DEMO), str(DEMO), "--brief"]) == 0
    check(json.loads(capsys.readouterr().out), "difference-1")


def test_the_skill_names_only_commands_and_options_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["skill"]) == 0
    text = capsys.readouterr().out
    assert text.strip() == skill().strip()
    assert re.match(r"---\nname: xsp\ndescription: .{50,}\n---\n", text)
    lines = re.findall(r"^xsp (.+?)(?:\s+#.*)?$", text, re.M)
    assert len(lines) > 8
    for line in lines:
        name, *arguments = shlex.split(line)
        command = cli.commands[name]
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        ours = arguments[: next((n for n, a in enumerate(arguments) if a.endswith(".py")), 99)]
        assert {each for each in ours if each.startswith("-")} <= known, line


def called(name: str, arguments: Mapping[str, Any]) -> Any:
    """Call a tool of the server as a client does, and return its answer or its error's text."""
    client_module, server_module = import_module("mcp"), import_module("xsp.show.agent.server")

    async def call() -> Any:
        async with client_module.Client(server_module.server()) as client:
            result = await client.call_tool(name, dict(arguments))
            if result.is_error:
                return result.content[0].text
            return result.structured_content

    return asyncio.run(call())


@pytest.mark.filterwarnings("ignore")
def test_the_server_has_five_tools_that_say_what_they_take() -> None:
    client_module, server_module = import_module("mcp"), import_module("xsp.show.agent.server")

    async def listed() -> Any:
        async with client_module.Client(server_module.server()) as client:
            return (await client.list_tools()).tools

    tools = asyncio.run(listed())
    assert sorted(tool.name for tool in tools) == [
        *("advise", "analyze", "compare", "import", "profile")
    ]
    assert all(tool.description for tool in tools)


@pytest.mark.filterwarnings("ignore")
def test_tools_answer_about_files(tmp_path: Path) -> None:
    check(called("advise", {"file": str(DEMO)}), "brief-1")
    table = called("analyze", {"file": str(DEMO), "question": "kernel-by-name", "rows": 3})
    assert len(table["rows"]) == 3 < table["rows_in_all"]
    assert set(table["rows"][0]) == set(table["columns"])
    check(called("compare", {"before": str(DEMO), "after": str(DEMO)}), "difference-1")
    recording = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 9}
    recording.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    imported = called("import", {"files": [str(recording)], "output": str(tmp_path / "a.xsp")})
    check(imported, "brief-1")
    assert xsp.load(tmp_path / "a.xsp").ops["name"].to_list() == ["aten::mm"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("advise", {"file": "missing.xsp"}, "missing.xsp"),
        ("analyze", {"file": str(DEMO), "question": "kernel-by-nam"}, "kernel-by-name"),
        ("analyze", {"file": str(DEMO), "question": "off-cpu"}, "levels=5"),
        ("profile", {"target": "missing.py", "output": str(DEMO)}, "exit code"),
        ("profile", {"target": "--help", "output": "x.xsp"}, "is an option"),
        ("import", {"files": [str(DEMO)], "output": "missing/x.xsp"}, "missing"),
    ],
)
def test_errors_of_tools_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in called(tool, arguments)


@pytest.mark.slow  # starts processes
@pytest.mark.filterwarnings("ignore")
def test_an_agent_measures_changes_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import sys, time\nimport xsp\nfor _ in range(20):\n    with xsp.span('work'):\n"
    Path("work.py").write_text(f"{code}        time.sleep(float(sys.argv[1]))\n")
    for name, seconds in (("before", "0.02"), ("after", "0.005")):
        found = called(
            "profile",
            {"target": "work.py", "output": f"{name}.xsp", "arguments": [seconds], "levels": "1"},
        )
        check(found, "brief-1")
    changed = called("compare", {"before": "before.xsp", "after": "after.xsp"})
    assert {row["verdict"] for row in changed["whole"] if row["quantity"] == "latency_ns"} == {
        "faster"
    }
    late = called("profile", {"target": "work.py", "output": "late.xsp", "arguments": ["5"],
                              "limit_seconds": 2})  # fmt: skip
    assert "did not end within 2 s" in late
