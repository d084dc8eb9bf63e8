"""Page: one or more traces in, one HTML page that needs nothing else out (`xsp.report`)."""

from xsp.show.page.assembly import report
from xsp.show.page.zoo import zoo_report

__all__ = ["report", "zoo_report"]
