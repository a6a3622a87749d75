"""inference.json in a run's folder: the names of the classes that its weights know and the preparation of their pictures, so
that the run needs its data no more to name a photograph's class. The network's switches are in arguments.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from base import bounds
from base.errors import OptionError
from base.fields import short
from base.storage import files, input_files
from harness.checkpoints import find, run_record, weights_file
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.run.recorded_arguments import CLASSES, digest_of, other_class_names
from harness.run.run import Run

FILE = "inference.json"
NAMES = "classes"  # the entry with the names in the order of the labels; in the options of a .npz file, too
_MAX_BYTES = 64 << 20  # the names of some hundred thousand classes
_REMEDY = "put it back as the run wrote it, or delete it to do without its names"


def described(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Return the content of the file: the names, () where nobody has any, and `preprocessing.described`."""
    from Datasets.formats import preprocessing

    return {NAMES: list(names), "preprocessing": preprocessing.described(run.data_source.spec, run.request(1))}


def record_inference(run: Run, folder: Path) -> None:
    """Write the file of a run that begins."""
    from Datasets.formats import class_names

    text = json.dumps(described(run, class_names.for_spec(run.data_source.spec)), indent=1, ensure_ascii=False)
    files.write_atomically(folder / FILE, text + "\n")


def names(run: Run, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the classes that a checkpoint knows: the recorded ones, or without a record those of the data. ()
    where those that the training knew are not at hand: ImageNet's are not theirs. CheckpointError for a record that is not
    this network's."""
    from Datasets.formats import class_names

    folder = find.run_folder(Path(checkpoint.prefix))
    recorded = run_record.arguments(folder)
    known, spec = recorded_names(folder, recorded), run.data_source.spec
    if known and (len(known) != spec.num_classes or recorded.get(CLASSES) not in (None, digest_of(known))):
        raise CheckpointError(f"{folder / FILE} has other classes than the run recorded; {_REMEDY}")
    return known or (() if recorded.get(CLASSES) and not spec.class_names else class_names.for_spec(spec))


def check_class_names(run: Run, folder: Path, recorded: Mapping[str, Any]) -> None:
    """OptionError where the data have as many classes as the weights know, and others: their labels would mean others."""
    if not other_class_names(recorded, run.data_source.spec):
        return
    pairs = zip(recorded_names(folder, recorded), run.data_source.spec.class_names)
    changed = next((f", as {short(now)} for {short(before)}" for before, now in pairs if before != now), "")
    raise OptionError(
        f"the classes of the data have other names, or another order, than those that the network has learnt{changed}: give "
        "them their earlier names, or begin a new run, which --init-path can give weights to"
    )


def recorded_names(folder: Path, recorded: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names beside the weights of a run's folder, or with those of a .npz file, whose options are `recorded`."""
    if weights_file.located(folder):
        return tuple(recorded.get(NAMES) or ())
    try:
        found = bounds.json_value(input_files.content(folder / FILE, _MAX_BYTES))[NAMES]
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise ValueError(f"'{NAMES}' must be a list of names")
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / FILE} cannot be read: {bounds.reason(error)}; {_REMEDY}") from None
    return tuple(found)
