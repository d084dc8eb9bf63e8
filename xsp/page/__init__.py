"""Page: one or more traces in, one HTML page that needs nothing else out (`xsp.report`)."""

from xsp.page.report import report

__all__ = ["report"]
