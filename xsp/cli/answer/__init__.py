"""Answers: files of traces in, what these say out: trees, tables, comparisons and pages."""

from xsp.cli.answer.analyze import analyze
from xsp.cli.answer.compare import compare
from xsp.cli.answer.report import report
from xsp.cli.answer.show import show

__all__ = ["analyze", "compare", "report", "show"]
