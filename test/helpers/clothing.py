"""Write a folder of example images: clothing of the embedded data set as PNGs, a folder for each class.

python test/helpers/clothing.py FOLDER [--classes N] [--images N]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cnn_harness.base.storage import cache
from cnn_harness.Datasets import fashion_mnist
from cnn_harness.Datasets.formats import idx

SIDE = 96  # pixels


def write(top: Path, classes: int, images: int) -> None:
    """Write the first images of the first classes that look different enough."""
    folder = cache.expanded("fashion-mnist-v1", idx.writer(lambda: idx.unpacked(idx.EMBEDDED)), os.environ)
    records = np.fromfile(folder / "train.bin", np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    names = fashion_mnist.SPECS["fashion-mnist"].class_names
    for label in (1, 7, 8, 0, 9, 3, 2, 5, 4, 6)[:classes]:
        place = top / names[label].replace("/", "-")
        place.mkdir(parents=True)
        for k, record in enumerate(records[records[:, 0] == label][:images]):
            image = Image.fromarray(record[1:].reshape(3, 32, 32).transpose(1, 2, 0))
            image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(place / f"{k:03}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--images", type=int, default=40)
    asked = parser.parse_args()
    write(asked.folder, asked.classes, asked.images)
