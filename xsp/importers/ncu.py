"""To be written: ncu."""

from xsp.importers.recording import Contents
from xsp.importers.source import Source


class NsightCompute:
    """To be written."""

    name = "ncu"
    tool = "ncu"

    def recognises(self, source: Source) -> bool:
        """Recognise nothing yet."""
        return False

    def read(self, source: Source) -> Contents:
        """Read nothing yet."""
        raise NotImplementedError
