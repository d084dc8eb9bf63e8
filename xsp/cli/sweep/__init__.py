"""`xsp sweep`: its options (command.py), its progress (progress.py), and its answer (answer.py)."""

from xsp.cli.sweep.command import sweep

__all__ = ["sweep"]
