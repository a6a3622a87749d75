"""Turns pictures of one's own into TFRecord shards with a labels.txt, for --dataset imagefolder or imagenet.

python -m Datasets.convert PICTURES TARGET            PICTURES/<class>/*, or PICTURES/train/<class>/* with val/ beside it
python -m Datasets.convert LIST.csv TARGET            rows of path, label and maybe train or validation
python -m Datasets.convert PICTURES TARGET --validation 0.1 --shards 64

Files are stored as they are: JPEG, PNG, GIF, BMP or WebP. An interrupted conversion goes on when the call is repeated, and
shards that have lost records since are written again.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import startup

    startup.begin("convert")

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from base.errors import DataError
from base.fields import escaped
from base.process import command_line, commands
from Datasets.formats import conversion_info
from Datasets.sources import image_folder, locate, splits
from Datasets.sources.image_folder import BadFile, Listing
from tools.datasets import listings, shard_writer


def main(argv: list[str]) -> int:
    """parse -> list -> test -> plan -> write."""
    arguments = _parse(argv)
    source, target = Path(arguments.source), Path(arguments.target)
    listing = _listed(arguments, source)
    _check_target([source, *filter(None, _split_folders(arguments))], target)
    top = (source if source.is_dir() else source.parent).absolute()

    def relative_path(file: Path) -> str:
        return os.path.relpath(file.absolute(), top)

    if arguments.validation is not None:
        listing = splits.split_off(listing, arguments.validation, relative_path, arguments.seed, "--validation")
    options = {"validation part": arguments.validation}
    plan = shard_writer.plan(listing, relative_path, arguments.seed, arguments.shards, options)
    with shard_writer.exclusive(target, plan) as unwritten:
        if len(unwritten) < len(plan.shards):
            print(f"{len(plan.shards) - len(unwritten)} of {len(plan.shards)} shards are there already")
        count = sum((target / shard.name).exists() for shard in unwritten)
        if count:
            print(f"{count} shard{'s' * (count > 1)} had lost records and {'are' if count > 1 else 'is'} written again")
        if unwritten:
            shard_writer.write(target, plan, unwritten, min(arguments.jobs, len(unwritten)))
    for split, pictures in listing.splits().items():
        shards = sum(shard.name.startswith(f"{split}-") for shard in plan.shards)
        print(f"{split}: {len(pictures)} pictures in {shards} shard{'s' * (shards > 1)}")
    print(f"{len(listing.classes)} classes, named in {target / 'labels.txt'}")
    if len(listing.classes) > 1:
        print(f"Train with --dataset imagefolder --data-dir {commands.in_shell([command_line.as_value(target)])}")
    else:
        print("warning: with one class there is nothing to learn; training needs two or more")
    return 0


def _listed(arguments: argparse.Namespace, source: Path) -> Listing:
    """The pictures, without bad files where --skip-bad-files allows that."""
    train, validation = _split_folders(arguments)
    listing = listings.of(source, train, validation)
    if arguments.validation is not None and listing.validation:
        raise DataError(f"{source} has pictures for validation of its own, so --validation cannot take others from training")
    if validation and source.is_file():
        if listing.validation:
            raise DataError(f"{source} has pictures for validation of its own; leave --validation-dir out")
        listing = dataclasses.replace(listing, validation=image_folder.of_classes(validation, listing.classes)[0])
    if validation and not listing.validation:
        raise DataError(f"--validation-dir {validation} holds no pictures in folders named like the classes")
    for note in listing.notes:
        print(note)
    good, bad = listings.without_bad_files(listing)
    if bad and not arguments.skip_bad_files:
        number = f"{len(bad)} file{'s' * (len(bad) > 1)} cannot be taken"
        raise DataError(f"{number}: {bad[0].file} {bad[0].advice}, or give --skip-bad-files", _lines(bad))
    if bad:
        print(f"Left out {len(bad)} bad file{'s' * (len(bad) > 1)}:\n{_lines(bad)}")
    listings.check_every_class(good)
    return good


def _split_folders(arguments: argparse.Namespace) -> list[Path | None]:
    """The folders of --train-dir and --validation-dir."""
    given = {"--train-dir": arguments.train_dir, "--validation-dir": arguments.validation_dir}
    if arguments.train_dir and Path(arguments.source).is_file():
        raise DataError(f"--train-dir is for a tree, and {arguments.source} is a list; leave it out")
    return [locate.split_folder(name, arguments.source, option) if name else None for option, name in given.items()]


def _lines(bad: list[BadFile]) -> str:
    return "\n".join(f"  {escaped(str(file))} {reason}" for file, reason in bad)


def _check_target(read: list[Path], target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise DataError(f"{target} is a file; give a new or empty folder")
    for folder in read:
        if folder.is_dir() and target.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{target} lies in {folder}, where it would count as pictures; give a folder elsewhere")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.Parser(
        prog="python -m Datasets.convert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a tree with one folder for each class, or a CSV file")
    add("target", metavar="TARGET", help="a new or empty folder, or one of an interrupted conversion")
    add(
        "--shards",
        type=command_line.int_between(1, conversion_info.MAX_SHARDS),
        metavar="N",
        help="training files (default: 128 MiB each)",
    )
    validation = parser.add_mutually_exclusive_group()
    validation.add_argument(
        "--validation",
        type=command_line.number(0, 1, ends=False),
        metavar="FRACTION",
        help="part of every class for validation",
    )
    validation.add_argument("--validation-dir", metavar="DIR", help="the folder whose folders are the classes of validation")
    add("--train-dir", metavar="DIR", help="the same of training, in SOURCE or elsewhere")
    jobs = command_line.int_between(1, 256)
    add("--jobs", type=jobs, metavar="N", default=os.cpu_count() or 1, help="shards written at once")
    add(
        "--seed",
        type=command_line.int_between(0, 2**31 - 1),
        metavar="S",
        default=0,
        help="of the order and of --validation (default 0)",
    )
    add("--skip-bad-files", action="store_true", help="list and leave out files that cannot be taken for pictures")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(command_line.run("convert", main, None, (DataError,), unprintable="backslashreplace"))
