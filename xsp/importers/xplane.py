"""To be written: xplane."""

from xsp.importers.recording import Contents
from xsp.importers.source import Source


class XPlane:
    """To be written."""

    name = "xplane"
    tool = "xplane"

    def recognises(self, source: Source) -> bool:
        """Recognise nothing yet."""
        return False

    def read(self, source: Source) -> Contents:
        """Read nothing yet."""
        raise NotImplementedError
