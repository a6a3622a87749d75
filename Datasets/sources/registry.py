"""The merged tables of all data set plug-ins. Each table has a row per data set.

* `DATASETS` has functions from an `OpenRequest` to a `DataSource`.
* `SPECS` has descriptions (`DataSpec`) with the published sizes.
* `CLASS_NAMES` has functions from an `OpenRequest` to the class names.
* `BINARY_FILES` has the `BinaryFiles` that Datasets.verify checks.
"""

from __future__ import annotations

from typing import Any

from cnn_harness.base import plugins
from cnn_harness.base.errors import DataError
from cnn_harness.Datasets._spec import DataSpec


def table(name: str) -> dict[str, Any]:
    """Return the table `name`, merged from all plug-ins that define it."""
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
