"""The photographs that --predict names: files, and everything in folders that counts as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from base.errors import DataError
from Datasets.formats import image_headers
from Datasets.sources import picture_files


@dataclass(frozen=True)
class Photographs:
    """Paths of photographs in their order. `of_folders`: those that nobody named, of which a damaged one is left out;
    `warnings`: a line on each that is."""

    paths: tuple[str, ...]
    of_folders: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def list_photographs(given: Sequence[str]) -> Photographs:
    """The photographs of the files and folders in `given`, by their headers; DataError for a file that is none, and for a
    folder without any."""
    paths: list[str] = []
    of_folders: set[str] = set()
    warnings: list[str] = []
    for path in given:
        if not Path(path).is_dir():
            image_headers.read(path)
            paths.append(path)
            continue
        below = picture_files.below(Path(path))
        faults = {file: image_headers.file_fault(file) for file in below}
        sound = [str(file) for file in below if not faults[file]]
        warnings += [left_out_line(f"photograph {file} {fault}") for file, fault in faults.items() if fault]
        if not sound:
            raise DataError(f"folder {path} holds no photograph{' that can be read' if below else ''}")
        paths += sound
        of_folders |= set(sound)
    return Photographs(tuple(dict.fromkeys(paths)), frozenset(of_folders - set(given)), tuple(warnings))


def left_out_line(fault: str) -> str:
    """Return the line on a photograph of a folder that is not named."""
    return f"warning: {fault}: left out"
