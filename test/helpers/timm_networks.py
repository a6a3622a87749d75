"""Recordings of timm's networks, from test/references."""

from __future__ import annotations

import json

import numpy as np

from cnn_harness.base import plugins

RECORDED = plugins.ROOT / "test/references"


def recorded(name):
    """Return the logits of a network of timm, and its variables' names and shapes."""
    with np.load(RECORDED / f"{name}.npz", allow_pickle=False) as file:
        found = dict(file)
    return found, {key: tuple(shape) for key, shape in json.loads(str(found["names"])).items()}
