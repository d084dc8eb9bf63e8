"""Page: one or more traces in, one HTML page that needs nothing else out (`xsp.report`)."""

from xsp.page.assembly import report

__all__ = ["report"]
