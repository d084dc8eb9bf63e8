"""To be written: onnxruntime."""

from xsp.importers.recording import Contents
from xsp.importers.source import Source


class OnnxRuntime:
    """To be written."""

    name = "onnxruntime"
    tool = "onnxruntime"

    def recognises(self, source: Source) -> bool:
        """Recognise nothing yet."""
        return False

    def read(self, source: Source) -> Contents:
        """Read nothing yet."""
        raise NotImplementedError
