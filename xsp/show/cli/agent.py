"""`xsp skill` and `xsp mcp`: the ways in for coding agents."""

from __future__ import annotations

import click

from xsp.show.cli import terminal

_SKILL_EPILOG = """\b
Examples:
  xsp skill > .claude/skills/xsp/SKILL.md
  xsp skill > AGENTS-xsp.md
"""

_MCP_EPILOG = """\b
Example of a client's configuration:
  {"mcpServers": {"xsp": {"command": "xsp", "args": ["mcp"]}}}
"""


@click.command(epilog=_SKILL_EPILOG)
def skill() -> None:
    """Print a skill file that teaches a coding agent to use xsp."""
    from xsp.show.agent import skill as text  # noqa: PLC0415

    terminal.write(text().rstrip("\n"))


@click.command(epilog=_MCP_EPILOG)
def mcp() -> None:
    """Serve xsp to coding agents by the Model Context Protocol.

    The server speaks on standard input and output, and has five tools: profile, analyze, advise,
    compare and import. It needs: pip install 'xsp[mcp]'.
    """
    from xsp.errors import MeasurementError  # noqa: PLC0415
    from xsp.show.agent import serve  # noqa: PLC0415

    try:
        serve()
    except ModuleNotFoundError as error:
        raise MeasurementError(
            f"The server needs another package ({error.name}). Install it: pip install 'xsp[mcp]'."
        ) from None
