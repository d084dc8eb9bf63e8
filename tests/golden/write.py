"""Writes the golden contents anew: `python tests/golden/write.py [part of a name ...]`.

What changed is then to be read: `git diff tests/golden/expected`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from content import content, document
from recordings import EXPECTED, recordings


def main(parts: list[str]) -> None:
    """Write the content of each recording whose name has one of some parts, or of all."""
    for each in recordings():
        if parts and not any(part in each.name for part in parts):
            continue
        if missing := [file for file in each.files if not file.exists()]:
            sys.stderr.write(f"{each.name} is left as it is: there is no {missing[0]}\n")
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_STATE_HOME"] = folder  # no peaks that were measured here
            said = document(content(each.trace(), Path(folder)))
        (EXPECTED / f"{each.name}.json").write_text(said, encoding="utf-8")
        sys.stderr.write(f"{time.monotonic() - began:.1f} s  {each.name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
