"""Page on a zoo: the frame of results in, one HTML page that needs nothing else out."""

from xsp.page.zoo.assembly import zoo_report

__all__ = ["zoo_report"]
