"""Write and read inference.json, which records the class names and the image preprocessing in a run directory.

With this file, --predict needs no data set. The options of the network are in arguments.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cnn_harness.base import bounds
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.storage import files, input_files
from cnn_harness.harness.checkpoints import find, run_record, weights_file
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from cnn_harness.harness.run.recorded_arguments import CLASSES, digest_of, other_class_names
from cnn_harness.harness.run.run import Run

FILE = "inference.json"
NAMES = "classes"  # key of the class names in inference.json and in the options of a .npz file
_MAX_BYTES = 64 << 20
_REMEDY = "Restore the original file, or delete it to continue without class names"


def described(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Return the content of inference.json for a run and its class names."""
    from cnn_harness.Datasets.formats import preprocessing

    return {NAMES: list(names), "preprocessing": preprocessing.described(run.data_source.spec, run.request(1))}


def record_inference(run: Run, folder: Path) -> None:
    """Write inference.json for a new run."""
    from cnn_harness.Datasets.formats import class_names

    text = json.dumps(described(run, class_names.for_spec(run.data_source.spec)), indent=1, ensure_ascii=False)
    files.write_atomically(folder / FILE, text + "\n")


def names(run: Run, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the class names of a checkpoint from inference.json or, if there is no such file, from the data set.

    Return () if the run had class names that are no longer known. Raise CheckpointError if inference.json belongs to another
    network.
    """
    from cnn_harness.Datasets.formats import class_names

    folder = find.run_folder(Path(checkpoint.prefix))
    recorded = run_record.arguments(folder)
    known, spec = recorded_names(folder, recorded), run.data_source.spec
    if known and (len(known) != spec.num_classes or recorded.get(CLASSES) not in (None, digest_of(known))):
        raise CheckpointError(f"{folder / FILE} has other classes than the training. {_REMEDY}")
    return known or (() if recorded.get(CLASSES) and not spec.class_names else class_names.for_spec(spec))


def check_class_names(run: Run, folder: Path, recorded: Mapping[str, Any]) -> None:
    """Raise OptionError if the data set and the weights have different class names, because labels would change meaning."""
    if not other_class_names(recorded, run.data_source.spec):
        return
    pairs = zip(recorded_names(folder, recorded), run.data_source.spec.class_names)
    changed = next((f" ({short(now)} for {short(before)})" for before, now in pairs if before != now), "")
    raise OptionError(
        f"the names or the order of the classes have changed since the training{changed}. Restore the earlier names, or "
        "start a new run; to start from these weights, give --init-path"
    )


def recorded_names(folder: Path, recorded: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class names in inference.json or, for a .npz file, in its options `recorded`; () if there are none."""
    if weights_file.located(folder):
        return tuple(recorded.get(NAMES) or ())
    try:
        found = bounds.json_value(input_files.content(folder / FILE, _MAX_BYTES))[NAMES]
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise ValueError(f"'{NAMES}' must be a list of names")
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read {folder / FILE}: {bounds.reason(error)}. {_REMEDY}") from None
    return tuple(found)
