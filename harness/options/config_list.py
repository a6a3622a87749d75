"""The named configurations of a file, a line each, without the options of any of them being resolved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from base.errors import OptionError
from base.fields import short
from base.plugins import did_you_mean
from harness.options import releases
from harness.options.configs import ConfigFile

ALL = "all"  # the word that stands for no word


def text(path: str, word: str) -> str:
    """Return a line for each configuration whose name or line has the word; OptionError, with the nearest names, if there
    is none."""
    file = ConfigFile(path)
    names = [name for name in file.names if releases.divided(name)[1] is None]
    spans = file.spans()
    lines = {name: _about({key: entry.value for key, entry in file.block(name).items()}) for name in names}
    lines = {name: f"{line} ({spans[name]})" if name in spans else line for name, line in lines.items()}
    shown = [name for name in names if word == ALL or word.lower() in f"{name} {lines[name]}".lower()]
    if not shown:
        hint = did_you_mean(word, names, cutoff=0.3)
        raise OptionError(
            f"--list-configs {short(word)}: no configuration of the {len(names)} in {path} has that word{hint}"
        )
    width = max(map(len, shown))
    return "\n".join(f"{name:<{width}}  {lines[name]}" for name in shown)


def _about(values: Mapping[str, Any]) -> str:
    """The network, the data, the batch, the length and the layout that a block gives, as far as it gives them."""
    counts = [values.get(name, 1) for name in ("micro_batch_size", "gradient_accumulation_count", "replicas")]
    parts = [
        " ".join(str(values[name]) for name in ("model", "model_size") if name in values),
        str(values.get("dataset", "")),
        f"batch {' x '.join(map(str, counts))}" if "micro_batch_size" in values else "",
        next((f"{values[name]} {name}" for name in ("epochs", "iterations") if name in values), ""),
        f"{values['shards']} stages" if values.get("shards", "1") not in ("1", None) else "",
        str(values.get("precision", "")),
        str(values.get("optimiser", "")),
    ]
    return ", ".join(part for part in parts if part)
