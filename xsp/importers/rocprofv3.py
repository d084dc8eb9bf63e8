"""To be written: rocprofv3."""

from xsp.importers.recording import Contents
from xsp.importers.source import Source


class RocProf:
    """To be written."""

    name = "rocprofv3"
    tool = "rocprofv3"

    def recognises(self, source: Source) -> bool:
        """Recognise nothing yet."""
        return False

    def read(self, source: Source) -> Contents:
        """Read nothing yet."""
        raise NotImplementedError
