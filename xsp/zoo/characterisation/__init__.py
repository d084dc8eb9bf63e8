"""Characterisation: the frame of a zoo's results in, the tables of the paper for this zoo out.

All tables are pure functions of the frame; `TABLES` lists them as the command line names them.
"""

from __future__ import annotations

from collections.abc import Mapping

from xsp.zoo.characterisation.batches import batch, throughput
from xsp.zoo.characterisation.entry import (
    IDENTITY,
    entry_rows,
    is_measured,
    labels_of,
    roofs,
    varying,
)
from xsp.zoo.characterisation.failures import failures, problems
from xsp.zoo.characterisation.models import models
from xsp.zoo.characterisation.shares import layer_types, primitives
from xsp.zoo.characterisation.summary import counts, findings, summary
from xsp.zoo.characterisation.table import ZooTable
from xsp.zoo.characterisation.thirds import thirds, thirds_by_quantity
from xsp.zoo.characterisation.variants import variants

_ALL = (models, throughput, batch, variants, thirds, layer_types, primitives, failures, problems)
TABLES: Mapping[str, ZooTable] = {table.name: table for table in _ALL}

__all__ = [
    "IDENTITY",
    "TABLES",
    "ZooTable",
    "counts",
    "entry_rows",
    "failures",
    "findings",
    "is_measured",
    "labels_of",
    "layer_types",
    "models",
    "primitives",
    "problems",
    "roofs",
    "summary",
    "thirds_by_quantity",
    "varying",
]
