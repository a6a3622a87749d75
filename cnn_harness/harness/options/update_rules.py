"""Find the optimisers in Optimisers/, and join their options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cnn_harness.base import plugins
from cnn_harness.Optimisers._rule import UpdateRule

FOLDER = "Optimisers"
_FIRST = ("SGD", "momentum", "RMSprop", "LARS", "LAMB", "Adam", "AdamW")  # the order in --help; others follow
_NAMES = (*_FIRST, *(name for name in plugins.names(FOLDER) if name not in _FIRST))
_FILES = {name: plugins.load(FOLDER, name) for name in _NAMES}
UPDATE_RULES: Mapping[str, type[UpdateRule]] = {name: file.Rule for name, file in _FILES.items()}
OPTIONS: Mapping[str, frozenset[str]] = {
    name: frozenset(field.name for field in dataclasses.fields(file.Options)) for name, file in _FILES.items()
}  # the options that each optimiser uses
# dataclasses collects the fields of the last base class first
_BASES = tuple(dict.fromkeys(file.Options for file in _FILES.values()))[::-1]
OptimiserOptions = dataclasses.dataclass(frozen=True, kw_only=True)(type("OptimiserOptions", _BASES, {}))
