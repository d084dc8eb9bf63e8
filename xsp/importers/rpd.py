"""To be written: rpd."""

from xsp.importers.recording import Contents
from xsp.importers.source import Source


class RocmProfileData:
    """To be written."""

    name = "rpd"
    tool = "rpd"

    def recognises(self, source: Source) -> bool:
        """Recognise nothing yet."""
        return False

    def read(self, source: Source) -> Contents:
        """Read nothing yet."""
        raise NotImplementedError
