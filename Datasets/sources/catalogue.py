"""The tables of all data set plug-ins: `DATASETS`, `SPECS`, `CLASS_NAMES`, `BINARY_FILES`, each by data set."""

from __future__ import annotations

from typing import Any

from base import plugins
from base.errors import DataError
from Datasets._spec import DataSpec


def table(name: str) -> dict[str, Any]:
    """The rows of one table, from every plug-in that has it."""
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
