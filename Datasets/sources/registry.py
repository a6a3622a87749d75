"""The tables of all data set plug-ins, by data set.

`DATASETS`: functions from an `OpenRequest` to a `DataSource`.
`SPECS`: the `DataSpec` with the published sizes.
`CLASS_NAMES`: functions from an `OpenRequest` to the class names.
`BINARY_FILES`: `BinaryFiles`, checked by Datasets.verify.
"""

from __future__ import annotations

from typing import Any

from base import plugins
from base.errors import DataError
from Datasets._spec import DataSpec


def table(name: str) -> dict[str, Any]:
    """Return a table by data set, merged from all plug-ins that have it."""
    rows: dict[str, Any] = {}
    for plugin in plugins.names("Datasets"):
        rows |= getattr(plugins.load("Datasets", plugin), name, {})
    return rows


def published_spec(dataset: str) -> DataSpec:
    """Return a data set's description with its published sizes, without reading files; raise DataError if unknown."""
    specs = table("SPECS")
    if dataset not in specs:
        raise DataError(f"no data set {dataset!r}; available: {', '.join(sorted(specs))}")
    return specs[dataset]
