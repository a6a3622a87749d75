"""Check that all instances (processes) of a run have the same code, options and data."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import cnn_harness
from cnn_harness.base import version
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import PER_INSTANCE
from cnn_harness.emulator.native import library
from cnn_harness.harness.options.sections import with_trait
from cnn_harness.harness.run.cluster import Cluster, seed_of
from cnn_harness.harness.run.run import Run

_FOLDERS = ("base", "Models", "Datasets", "LR_Schedules", "Optimisers", "emulator", "harness")
_PACKAGES = ("tensorflow", "numpy")


def code_version() -> str:
    """Return a digest of the project's source files, and the versions of TensorFlow and NumPy."""
    digest = hashlib.blake2b(digest_size=6)
    places = [Path(place) for place in cnn_harness.__path__]
    patterns = ("*.py", *(f"{name}/**/*.py" for name in _FOLDERS))
    found = {file.relative_to(place): file for place in places for pattern in patterns for file in place.glob(pattern)}
    found.pop(Path("setup.py"), None)  # an installation has no setup.py, and must give the same digest as its checkout
    for name in sorted(found):
        digest.update(name.name.encode() + found[name].read_bytes())
    return ", ".join([digest.hexdigest(), *(f"{name} {version.installed(name)}" for name in _PACKAGES)])


def config(run: Run) -> dict[str, Any]:
    """Return this instance's code version, options and data, which must be the same in all instances, and the seed and run
    directory, which instance 0 decides."""
    spec = run.data_source.spec
    own = with_trait(PER_INSTANCE)
    options = {name: value for name, value in run.options.values().items() if name not in own}
    data = {name: getattr(spec, name) for name in ("name", "num_classes", "train_images", "validation_images")}
    data["records"] = run.data_source.digest() if hasattr(run.data_source, "digest") else ""  # generated data have no digest
    logging = run.options.logging
    place = {"name": run.name, **{name: getattr(logging, name) for name in ("name_suffix", "log_dir", "logs_path")}}
    common = {"code": code_version(), "kernels": library.identity() or "no native kernels"}
    return {**common, "options": json.loads(json.dumps(options)), "data": data, "seed": seed_of(run.options), **place}


def compare(configs: list[dict[str, Any]], cluster: Cluster) -> None:
    """Raise OptionError if an instance differs from instance 0. The message names the instance and the differences."""
    leader = configs[0]
    for k, config in enumerate(configs):
        who = cluster.name_of(k)
        if config["code"] != leader["code"]:
            raise OptionError(
                f"{who} and instance 0 run different code: {config['code']} and {leader['code']}. Install the same version "
                "on all hosts"
            )
        if config["kernels"] != leader["kernels"]:
            raise OptionError(
                f"{who} has {config['kernels']}, but instance 0 has {leader['kernels']}: kernels depend on the processor. "
                f"Set {library.SWITCH}=0 on all hosts, or use equal processors and run `make kernels` on each host"
            )
        for what, shown in (("options", "--{}"), ("data", "data set: {}")):
            other = [name for name in leader[what] if config[what].get(name) != leader[what][name]]
            if other:
                pairs = [(shown.format(n.replace("_", "-")), config[what].get(n), leader[what][n]) for n in other[:4]]
                differences = ", ".join(f"{name} {_shown(its)} instead of {_shown(wanted)}" for name, its, wanted in pairs)
                raise OptionError(
                    f"{who} differs from instance 0: {differences}. Give all instances the same options and data"
                )


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) or "(none)" if isinstance(value, list) else str(value)
