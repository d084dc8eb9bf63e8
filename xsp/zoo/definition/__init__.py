"""Definitions: zoo files and shorthands in, the tasks that they stand for out.

`read_zoo` (reading.py) reads files (document.py, by the schema of schema.py and value.py) and
shorthands as entries (entry.py), finds their models, and makes tasks of them (expansion.py).
`template` (template.py) is the file that `xsp zoo init` writes.
"""

from xsp.zoo.definition.reading import Zoo, read_zoo
from xsp.zoo.definition.template import template

__all__ = ["Zoo", "read_zoo", "template"]
