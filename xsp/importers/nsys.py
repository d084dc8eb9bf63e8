"""To be written: nsys."""

from xsp.importers.recording import Contents
from xsp.importers.source import Source


class NsightSystems:
    """To be written."""

    name = "nsys"
    tool = "nsys"

    def recognises(self, source: Source) -> bool:
        """Recognise nothing yet."""
        return False

    def read(self, source: Source) -> Contents:
        """Read nothing yet."""
        raise NotImplementedError
