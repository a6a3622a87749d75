"""The tables of all data set plug-ins, by data set.

`DATASETS`: functions from an `OpenRequest` to a `DataSource`. `SPECS`: a `DataSpec` with the published sizes. `CLASS_NAMES`:
functions from an `OpenRequest` to the names of the classes. `BINARY_FILES`: `BinaryFiles`, which Datasets.verify checks.
"""

from __future__ import annotations

from typing import Any

from base import plugins
from base.errors import DataError
from Datasets._spec import DataSpec


def table(name: str) -> dict[str, Any]:
    """The rows of one table by data set, from every plug-in that has the table."""
    rows: dict[str, Any] = {}
    for plugin in plugins.names("Datasets"):
        rows |= getattr(plugins.load("Datasets", plugin), name, {})
    return rows


def published_spec(dataset: str) -> DataSpec:
    """A data set's description with its published sizes; reads no files. DataError for an unknown name."""
    specs = table("SPECS")
    if dataset not in specs:
        raise DataError(f"no data set {dataset!r}; there are {', '.join(sorted(specs))}")
    return specs[dataset]
