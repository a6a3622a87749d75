"""Splits of a listing's pictures that follow from their names."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from base.errors import DataError
from Datasets.sources.image_folder import Listing, Picture


def split_off(listing: Listing, fraction: float, place: Callable[[Path], str], seed: int, option: str) -> Listing:
    """Return the listing with a part of every class' pictures as its validation split, the same for the same seed and
    names; one picture of each class stays in training. DataError, which names the `option`, if there is none to take."""
    by_class: dict[int, list[Picture]] = defaultdict(list)
    for picture in listing.train:
        by_class[picture.label].append(picture)
    chosen: set[Picture] = set()
    for pictures in by_class.values():
        count = min(round(fraction * len(pictures)), len(pictures) - 1)
        chosen |= set(shuffled(pictures, place, f"{seed} validation")[:count])
    if not chosen:
        largest = max(map(len, by_class.values()))
        remedy = f"give {1 / largest:.2g} or more" if largest > 1 else "add pictures, for one stays in training"
        raise DataError(f"{option} {fraction:g} takes no picture of any class: the largest has {largest}; {remedy}")
    train = [picture for picture in listing.train if picture not in chosen]
    return replace(listing, train=train, validation=[picture for picture in listing.train if picture in chosen])


def shuffled(pictures: list[Picture], place: Callable[[Path], str], key: str) -> list[Picture]:
    """Return the pictures in an order that follows from `key` and their places alone."""

    def drawn(picture: Picture) -> tuple[bytes, str]:
        name = place(picture.file)
        return hashlib.blake2b(f"{key}\0{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest(), name

    return sorted(pictures, key=drawn)
