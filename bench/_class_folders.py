"""Images of a folder <split>/<class>, for workers of bench/finetuning.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def images(folder: Path) -> tuple[list[Image.Image], np.ndarray]:
    """Return the images of a split, and their labels."""
    classes = sorted(each.name for each in folder.iterdir())
    files = [(file, label) for label, name in enumerate(classes) for file in sorted((folder / name).iterdir())]
    return [Image.open(file).convert("RGB") for file, _ in files], np.array([label for _, label in files])


def central(image: Image.Image, side: int) -> Image.Image:
    """Return the central crop that this project uses, too."""
    scale = int(side * 256 / 224) / min(image.size)
    image = image.resize([max(side, round(scale * length)) for length in image.size], Image.Resampling.BILINEAR)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def normalised(batch: list[Image.Image]) -> np.ndarray:
    """Return images as EfficientNet-Lite0 expects them, float32 [batch, side, side, 3]."""
    return (np.stack([np.asarray(each, np.float32) for each in batch]) - 127) / 128
