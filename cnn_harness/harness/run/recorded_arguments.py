"""Make and check the record of a run: options and derived values, in checkpoints and in arguments.json.

A record may come from a stranger, so the types of its values are checked.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cnn_harness.base.fields import LARGEST_COUNT, short
from cnn_harness.Datasets._spec import DataSource, DataSpec
from cnn_harness.harness.options.catalogue import KINDS, every_option
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.data import recorded_places
from cnn_harness.harness.run.run import Run

RUN_ID = "run_id"
SEED = "seed"
OPTIMISER, LR_SCALE = "optimiser", "lr_scale"  # they give the scale of the optimiser's state
ARITHMETIC = "arithmetic"  # `Run.arithmetic`
CLASSES = "class_names"  # a digest of the ordered class names
ASKED = "asked"  # values as the user gave them, before they were resolved
RECORDS, VALIDATION_RECORDS = "records_digest", "validation_records_digest"
DECLINED = "training_declined"  # true if a trial found that training does not help
PARTS = ("train_images", "validation_images")  # the sizes of the training set and the validation set
_LARGEST = 2**63 - 1


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number, finite or not."""
    return type(value) is float or _is_whole(value, -_LARGEST)


def is_positive(value: Any) -> bool:
    """Return whether a JSON value is a finite number above 0."""
    return is_number(value) and 0 < value < math.inf


def _is_whole(value: Any, least: int = 0, most: int = _LARGEST) -> bool:
    return type(value) is int and least <= value <= most


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


COUNT, WHOLE, POSITIVE = f"a whole number from 1 to {LARGEST_COUNT}", "a whole number of at least 0", "a number above 0"
TEXT, TEXTS, OBJECT = "text", "a list of names", "an object"
_CHECKS: Mapping[str, Callable[[Any], bool]] = {  # the check for each rule, by the text of the rule
    COUNT: lambda value: _is_whole(value, 1, LARGEST_COUNT),
    WHOLE: _is_whole,
    POSITIVE: is_positive,
    TEXT: lambda value: isinstance(value, str),
    TEXTS: _are_texts,
    OBJECT: lambda value: isinstance(value, dict),
    KINDS[bool]: lambda value: isinstance(value, bool),
    KINDS[int]: lambda value: _is_whole(value, -_LARGEST),
    KINDS[float]: lambda value: is_number(value) and math.isfinite(value),
    KINDS[str]: lambda value: isinstance(value, str),
}
_DERIVED: Mapping[str, str] = {
    **dict.fromkeys((ASKED, "sources"), OBJECT),
    **dict.fromkeys(("total_replicas", "total_batch_size", "batch_size", "image_size", "instances"), COUNT),
    **dict.fromkeys(("num_classes", "train_images"), COUNT),
    **dict.fromkeys(("parameters", "instance", "fold_used", "iterations_per_epoch", "total_iterations", SEED), WHOLE),
    "validation_images": WHOLE,
    **dict.fromkeys(("grad_scale", LR_SCALE), POSITIVE),
    **dict.fromkeys(("seed_specified", "restoring", DECLINED), KINDS[bool]),
    **dict.fromkeys((RUN_ID, CLASSES, RECORDS, VALIDATION_RECORDS, "name", "command", "summary_str"), TEXT),
    **dict.fromkeys(("checkpoint_path", "datetime", "hostname", "restored_from", "values_release"), TEXT),
    **dict.fromkeys(("instance_folders", "wd_exclude", "classes"), TEXTS),
}  # fmt: skip


# Networks of plug-ins are not in this table and keep the value of --model.
_NAMES = {"resnet": "ResNet", "resnext": "ResNeXt", "squeezenet": "SqueezeNet", "efficientnet": "EfficientNet"}
_LITE = {"model": "efficientnet", "se": False, "use_relu6": True, "fix_stem_head": True}


def network_title(options: Mapping[str, Any]) -> str:
    """Return the name of the network with these options, such as "ResNet-14"; "" if it is unknown."""
    return "-".join(filter(None, (_NAMES.get(name := options.get("model") or "", name), network_size(options))))


def network_size(options: Mapping[str, Any]) -> str:
    """Return the size of the network with these options, such as "50" or "B0"; "Lite0" for the B0 of EfficientNet-Lite."""
    size = str(options.get("model_size") or "")
    lite = all(options.get(name) == value for name, value in _LITE.items())
    return size.replace("B", "Lite") if lite else size


def arguments(run: Run, execution: Execution, command: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of arguments.json: the value and source of every option, and derived values."""
    values = option_values(run)
    scale, in_rate = run.options.training.loss_scaling, run.options.training.gradient_scale
    return {
        **values,
        # options that were resolved to other values
        **recorded_places(run.options.dataset),
        **({"log_all_instances": True} if execution.all_log else {}),
        "batch_size": run.plan.micro_batch_size,
        "global_batch_size": run.plan.global_batch,
        "image_size": run.image_size,
        "num_classes": run.data_source.spec.num_classes,  # --predict opens no data, but needs the size of the network
        "precision": run.plan.precision.name,
        # derived values
        "command": command,
        "data_dir": run.data_dir,
        "fold_used": run.plan.fold,
        "grad_scale": scale / in_rate,
        "iterations_per_epoch": run.length.iterations_per_epoch,
        LR_SCALE: in_rate,
        "name": run.name,
        CLASSES: names_digest(run.data_source.spec),
        **data_identity(run.data_source),
        "parameters": run.network.parameters,
        SEED: execution.seed,
        "seed_specified": run.options.device.seed is not None,
        "summary_str": run.summary(execution),
        "total_batch_size": run.plan.global_batch,
        "total_iterations": run.length.iterations,
        "total_replicas": run.plan.total_replicas,
        "values_release": run.options.values_release,
        "instances": run.plan.instances,
        "instance": execution.cluster.instance,
        "instance_folders": list(execution.folders),
        "wd_exclude": list(run.not_decayed),
        **extra,
        ASKED: {name: values[name] for name in ("global_batch_size", "image_size")},
        "sources": dict(run.options.sources),
    }


def option_values(run: Run) -> dict[str, Any]:
    """Return the options by name, with lists instead of tuples as in JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in run.options.values().items()}


def data_identity(source: DataSource) -> dict[str, Any]:
    """Return the sizes of the training set and the validation set, a digest of all records, and a digest of the validation
    records. Random data have no digests.
    """
    return {
        **{name: getattr(source.spec, name) for name in PARTS},
        RECORDS: source.digest() if hasattr(source, "digest") else None,
        VALIDATION_RECORDS: source.validation_digest() if hasattr(source, "validation_digest") else None,
    }


def changed_data(source: DataSource, recorded: Mapping[str, Any], parts: Sequence[str] = PARTS) -> list[str]:
    """Return phrases that describe how the data differ from the record of a run.

    `parts` selects the sizes to compare. If all sizes are equal, the digests are compared.
    """
    now = data_identity(source)
    before = {name: recorded.get(name) for name in now}
    sizes = [name for name in PARTS if before[name] not in (None, now[name])]
    if parts == PARTS[1:] and None not in (before[VALIDATION_RECORDS], now[VALIDATION_RECORDS]):
        sizes = [name for name in sizes if name in parts]
        others = before[VALIDATION_RECORDS] != now[VALIDATION_RECORDS]
    else:
        others = None not in (before[RECORDS], now[RECORDS]) and before[RECORDS] != now[RECORDS]
    if others and not sizes:
        return ["the same number of images, but different ones or in another order"]
    return [f"{before[name]:,} {name.replace('_', ' ')}, now {now[name]:,}" for name in sizes if name in parts]


def names_digest(spec: DataSpec) -> str | None:
    """Return the digest of the class names of a data set, or None if the names are unknown."""
    return digest_of(spec.class_names) if spec.class_names else None


def digest_of(names: Sequence[str]) -> str:
    """Return the digest of class names in their order."""
    return hashlib.blake2b(json.dumps(names).encode(), digest_size=8).hexdigest()


def other_class_names(recorded: Mapping[str, Any], spec: DataSpec) -> bool:
    """Return whether the class names differ from the record, although the number of classes is the same."""
    before, now = recorded.get(CLASSES), names_digest(spec)
    return None not in (before, now) and before != now and recorded.get("num_classes") == spec.num_classes


def sets_length(run: Run) -> bool:
    """Return whether the command line says how long to train. Then no trial decides whether to train."""
    return any(map(run.options.given, ("epochs", "iterations")))


def ends_untrained(run: Run, recorded: Mapping[str, Any]) -> bool:
    """Return whether the run ends before its first update, because a trial found that training does not help."""
    return bool(recorded.get(DECLINED)) and not sets_length(run)


def invalid_option(recorded: Mapping[str, Any]) -> str | None:
    """Return an error message for the first value of a wrong type, or None. null is valid for every option."""
    for name, value in recorded.items():
        several, kinds = (False, {_DERIVED[name]}) if name in _DERIVED else _option_kinds().get(name, (False, set()))
        items = value if several and isinstance(value, list) else [value]
        if value is not None and kinds and not any(all(map(_CHECKS[kind], items)) for kind in kinds):
            allowed = "a list, each element " * several + " or ".join(sorted(kinds))
            return f"{name} is {short(repr(value))} but must be {allowed}"
    return invalid_option(recorded[ASKED]) if recorded.get(ASKED) else None


@functools.cache
def _option_kinds() -> Mapping[str, tuple[bool, set[str]]]:
    """Return {option: (whether it may be a list, the types of its values)} for all scripts, models and schedules."""
    kinds: dict[str, tuple[bool, set[str]]] = {}
    for option in every_option(None):
        several, found = kinds.get(option.name, (False, set()))
        switch = {KINDS[bool]} if option.meta["bare"] else set()  # earlier records have true or false for some options
        kinds[option.name] = several or option.several, {*found, *switch, KINDS[option.base]}
    return kinds
