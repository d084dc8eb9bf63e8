"""Answers: files of traces in, what these say out: trees, tables, comparisons and pages."""

from xsp.show.cli.answer.analyze import analyze
from xsp.show.cli.answer.compare import compare
from xsp.show.cli.answer.report import report
from xsp.show.cli.answer.show import show
from xsp.show.cli.answer.table import drawn

__all__ = ["analyze", "compare", "drawn", "report", "show"]
