"""Convert images to TFRecord shards and a labels.txt, for --dataset imagefolder or imagenet.

python -m Datasets.convert IMAGES TARGET            a tree: one folder per class in IMAGES, or in IMAGES/train and IMAGES/val
python -m Datasets.convert LIST.csv TARGET          a list: rows of path, label and optionally train or validation
python -m Datasets.convert IMAGES TARGET --validation 0.1 --shards 64

JPEG, PNG, GIF, BMP and WebP files are stored unchanged. To restart an interrupted conversion, run the same command again.
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("convert")

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from cnn_harness.base.errors import DataError
from cnn_harness.base.fields import escaped
from cnn_harness.base.process import command_line, commands
from cnn_harness.Datasets.formats import tfrecord
from cnn_harness.Datasets.sources import image_folder, locate
from cnn_harness.Datasets.sources.image_folder import BadFile, Listing
from cnn_harness.tools.datasets import listings, shard_writer


def main(argv: list[str]) -> int:
    """Parse the options, list and test the images, plan the shards, and write the shards."""
    arguments = _parse(argv)
    source, target = Path(arguments.source), Path(arguments.target)
    if arguments.train_dir and source.is_file():
        raise DataError(f"--train-dir needs a folder as SOURCE, but {source} is a list; leave out --train-dir")
    train, validation = (
        locate.split_folder(given, source, option) if given else None
        for option, given in (("--train-dir", arguments.train_dir), ("--validation-dir", arguments.validation_dir))
    )
    listing = _without_bad_files(_listing(source, train, validation, arguments.validation), arguments.skip_bad_files)
    _check_target([source, *filter(None, (train, validation))], target)
    top = (source if source.is_dir() else source.parent).absolute()

    def relative_path(file: Path) -> str:
        return os.path.relpath(file.absolute(), top)

    if arguments.validation is not None:
        listing = image_folder.split_off(listing, arguments.validation, relative_path, arguments.seed, "--validation")
    planned = shard_writer.plan(listing, relative_path, arguments.seed, arguments.shards)
    shard_writer.write(target, planned, listing.classes, relative_path, min(arguments.jobs, len(planned)))
    for split, images in listing.splits().items():
        shards = sum(name.startswith(f"{split}-") for name in planned)
        print(f"{split}: {len(images)} image{'s' * (len(images) > 1)} in {shards} shard{'s' * (shards > 1)}")
    print(f"{len(listing.classes)} classes, named in {target / 'labels.txt'}")
    if len(listing.classes) > 1:
        print(f"Train with --dataset imagefolder --data-dir {commands.in_shell([command_line.as_value(target)])}")
    else:
        print("warning: there is only one class; training needs at least two")
    return 0


def _listing(source: Path, train: Path | None, validation: Path | None, fraction: float | None) -> Listing:
    """Return the images of the source, and of the folder given by --validation-dir."""
    listing = listings.read(source, train, validation)
    if listing.validation and (fraction is not None or (validation and source.is_file())):
        raise DataError(f"{source} already has validation images; leave out --validation and --validation-dir")
    if validation and source.is_file():
        listing = replace(listing, validation=image_folder.images_by_class(validation, listing.classes)[0])
    if validation and not listing.validation:
        raise DataError(
            f"--validation-dir {validation} has no images in folders named like the training classes; add images"
        )
    for note in listing.notes:
        print(note)
    return listing


def _without_bad_files(listing: Listing, skip: bool) -> Listing:
    """Return the images that training can decode. Unless `skip` is true, raise DataError for the other files."""
    good, bad = listings.without_bad_files(listing)
    if bad and not skip:
        number = f"{len(bad)} file{'s' * (len(bad) > 1)} cannot be used"
        raise DataError(
            f"{number}: {bad[0].file} {bad[0].reason}; remove or replace it, or give --skip-bad-files", _lines(bad)
        )
    if bad:
        print(f"Skipped {len(bad)} bad file{'s' * (len(bad) > 1)}:\n{_lines(bad)}")
    with_some = {image.label for image in good.train}
    for label, name in enumerate(good.classes, 1):
        if label not in with_some:
            raise DataError(f"class {name} has no training images left; add images or remove the class folder")
    return good


def _lines(bad: list[BadFile]) -> str:
    return "\n".join(f"  {escaped(str(file))} {reason}" for file, reason in bad)


def _check_target(read: list[Path], target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise DataError(f"{target} is a file; give a new or empty folder")
    for folder in read:
        if folder.is_dir() and target.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{target} is inside {folder}, the folder with the images; give a folder elsewhere")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.Parser(
        prog="python -m Datasets.convert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, whole = parser.add_argument, command_line.int_between
    add("source", metavar="SOURCE", help="a tree with one folder per class, or a CSV file")
    add("target", metavar="TARGET", help="a new or empty folder, or the folder of an interrupted conversion")
    add(
        "--shards", type=whole(1, tfrecord.MAX_SHARDS), metavar="N", help="number of training shards (default: 128 MiB each)"
    )
    validation = parser.add_mutually_exclusive_group()
    fraction = command_line.number(0, 1, ends=False)
    validation.add_argument("--validation", type=fraction, metavar="FRACTION", help="fraction of every class for validation")
    validation.add_argument("--validation-dir", metavar="DIR", help="validation images, with one folder per class")
    add("--train-dir", metavar="DIR", help="training images, with one folder per class, in SOURCE or elsewhere")
    add("--jobs", type=whole(1, 256), metavar="N", default=os.cpu_count() or 1, help="number of shards written at once")
    seed = whole(0, 2**31 - 1)
    add("--seed", type=seed, metavar="S", default=0, help="seed for the order of images and for --validation (default 0)")
    add("--skip-bad-files", action="store_true", help="skip files that cannot be read as images, and list them")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(command_line.run("convert", main, None, (DataError,), unprintable="backslashreplace"))
