"""The command line: arguments in, output and exit codes out."""

from xsp.cli.app import main

__all__ = ["main"]
