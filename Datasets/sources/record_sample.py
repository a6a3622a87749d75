"""Check a sample of records before a run: labels, class names, and records that are in both splits.

Only a few records are read, so that a run starts without delay. `cnn verify` checks all records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets._spec import sampled
from cnn_harness.Datasets.formats import class_names, record_texts, tf_example
from cnn_harness.Datasets.formats.bad_records import REMEDY
from cnn_harness.Datasets.formats.tfrecord import RecordIndex

_COMPARED = 4  # for each sampled validation record, number of training records with which it is compared


def check(splits: Mapping[str, RecordIndex], names: Sequence[str], labels: range, skip_bad: bool) -> tuple[str, ...]:
    """Return warnings about contradictions. `names` are the classes in labels.txt, if any.

    Raise DataError if training would stop at a sampled record because of its features. Damage is reported when it is read.
    """
    texts: dict[str, list[tuple[int, str]]] = {}
    copies: list[tuple[str, str]] = []
    read = 0
    for split, index in splits.items():
        pairs = texts.setdefault(split, [])
        for record in sampled(len(index)):
            try:
                payload = index.payload(record)
            except DataError:
                continue
            example = tf_example.parse(payload)
            reason = tf_example.fault(example, labels, lambda _: None)
            from_zero = reason is not None and reason.startswith(f"{tf_example.WRONG_LABEL} 0,")
            if reason and split == "train" and (from_zero or not skip_bad):
                remedy = tf_example.LABEL_REMEDY if reason.startswith(tf_example.WRONG_LABEL) else REMEDY
                raise DataError(f"{index.name(record)} cannot be used: {reason}; {remedy}")
            if example and len(example.labels) == len(example.texts) == 1:
                pairs.append((example.labels[0], example.texts[0]))
            if split == "validation":
                read += 1
                if (copy := splits["train"].copy_of(payload, record, _COMPARED)) is not None:
                    copies.append((index.name(record), splits["train"].name(copy)))
    found = record_texts.contradictions(texts, names, labels.start)
    if copies:
        found.append(
            f"{len(copies)} of {read} sampled validation records are training records, for example {copies[0][0]} is "
            f"{copies[0][1]}; the accuracy looks better than it is"
        )
    return tuple(f"warning: {line}" for line in [*class_names.alike(names), *found])
