"""To be written: kineto."""

from xsp.importers.recording import Contents
from xsp.importers.source import Source


class Kineto:
    """To be written."""

    name = "kineto"
    tool = "kineto"

    def recognises(self, source: Source) -> bool:
        """Recognise nothing yet."""
        return False

    def read(self, source: Source) -> Contents:
        """Read nothing yet."""
        raise NotImplementedError
