"""Answers coding agents: a brief of a trace as JSON, a skill to read, and an MCP server.

`brief` (digest.py) puts the few numbers of a trace that decide what to do next into plain values,
by the schema docs/schema/brief-1.json. `skill` reads skill.md, and `server` (server.py) serves
five tools by the official SDK of the Model Context Protocol.
"""

from pathlib import Path

from xsp.show.agent.digest import SCHEMA, brief, difference

__all__ = ["SCHEMA", "brief", "difference", "serve", "skill"]


def skill() -> str:
    """Read the skill file that teaches an agent to measure, find a cause, change and compare."""
    return Path(__file__).with_name("skill.md").read_text(encoding="utf-8")


def serve() -> None:
    """Serve the tools on standard input and output until the client leaves.

    Raises:
        ModuleNotFoundError: The package `mcp`, which `xsp[mcp]` brings, is not installed.
    """
    from xsp.show.agent.server import server  # noqa: PLC0415

    server().run()
