"""The folder of an export: written beside its place, and moved there when every file has proved right."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from base.errors import OptionError
from base.fields import brief
from base.process.signals import Signals
from base.storage import files, input_files, locks
from harness.export import digests
from harness.export.file_formats import FORMATS
from harness.export.network import LABELS, PREPROCESSING

FILES = (LABELS, PREPROCESSING, *(name for each in FORMATS.values() for name in (each.file, each.quantised) if name))
_MAX_BYTES = 64 << 20  # of a text
_FINISHING = "stopping when the export is in its place"
_UNFINISHED = ".unfinished-export-"  # begins the name of a folder


def check(folder: Path, texts: Mapping[str, str], force: bool, written: Collection[str] = FILES) -> None:
    """OptionError for a place that is no folder, or that holds the export of something else: another network, other weights,
    or other sizes of pictures; or a file in the place of one that is to be `written` and is of no export."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise OptionError(f"--output {folder} is no folder; give another name")
    there = [name for name in FILES if os.path.lexists(folder / name)]
    if not force and not _of_these(folder, texts, there):
        raise OptionError(
            f"{folder} holds an export of something else ({', '.join(there)}); --force replaces it, --output names another "
            "place"
        )
    if not there and not force and os.path.lexists(folder / digests.FILE):
        raise OptionError(
            f"{folder} holds a {digests.FILE} of other files than an export's; --force replaces it, --output names another "
            "place"
        )
    known = _kept_digests(folder)
    foreign = [name for each in there if known and each in written for name in _unlisted(folder, each, {*texts, *known})]
    if foreign and not force:
        raise OptionError(
            f"{folder} holds {brief(', '.join(sorted(foreign)))}, which {digests.FILE} does not list, so that no export "
            "wrote it; --force replaces it, --output names another place"
        )


def _of_these(folder: Path, texts: Mapping[str, str], there: Sequence[str]) -> bool:
    """Return whether the files that are there belong to these texts: an export of them, or one that `put` had begun."""
    told = [name for name in texts if name in there]
    return _holds(folder, {name: texts[name] for name in told}) and (len(told) == len(texts) or len(told) == len(there))


def _unlisted(folder: Path, name: str, known: Collection[str]) -> list[str]:
    """The file of that name, or the files in the folder of that name, that are not `known`."""
    paths = (folder / name).rglob("*") if (folder / name).is_dir() else [folder / name]
    own = [path.relative_to(folder).as_posix() for path in paths if path.is_symlink() or not path.is_dir()]
    return [each for each in own if each not in known]


def _holds(folder: Path, texts: Mapping[str, str]) -> bool:
    """Return whether the texts of an export are the same ones."""
    with suppress(OSError, UnicodeDecodeError):
        return all(input_files.text(folder / name, _MAX_BYTES) == text for name, text in texts.items())
    return False


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder on the same disk for files that are not finished. Nothing of it stays, nor of those of killed calls.
    OptionError if none can be made."""
    with ExitStack() as stack:
        try:
            beside = stack.enter_context(locks.scratch_folder(files.nearest_folder(folder), _UNFINISHED))
        except OSError as error:
            raise OptionError(
                f"--output {folder} cannot be written: {error.strerror}; give --output another place"
            ) from None
        yield beside


def put(staging: Path, folder: Path, texts: Mapping[str, str]) -> None:
    """Move finished files into their folder, with the texts that belong to them; those of another export go.

    The texts go before the other files: by them `check` knows the export of a call that was killed in between. The digests
    are taken away first and come last, so that none is of another file.
    """
    for name, text in texts.items():
        with files.naming(folder / name):
            (staging / name).write_text(text, encoding="utf-8")
    written = [*texts, *(path.name for path in staging.iterdir() if path.name not in texts)]
    old, gone = staging / "replaced", () if _holds(folder, texts) else FILES
    sums = {} if gone else _kept_digests(folder)
    for name in written:
        sums = {each: digest for each, digest in sums.items() if not (each == name or each.startswith(f"{name}/"))}
        sums |= digests.of(staging, name)
    digests.keep(staging, sums)  # nothing is written any more from here on, only renamed: a full disk loses nothing
    folder.mkdir(parents=True, exist_ok=True)
    old.mkdir()
    with Signals() as signals, signals.deferred(telling=_FINISHING):
        _replace(staging, folder, written, gone, old)


def _replace(staging: Path, folder: Path, written: Sequence[str], gone: Sequence[str], old: Path) -> None:
    _move_away(folder / digests.FILE, old)
    for name in gone:
        _move_away(folder / name, old)
    for name in written:
        if (staging / name).is_dir() or (folder / name).is_dir():  # a file replaces a file at once
            _move_away(folder / name, old)
        os.replace(staging / name, folder / name)
    os.replace(staging / digests.FILE, folder / digests.FILE)


def _kept_digests(folder: Path) -> dict[str, str]:
    """Return the digests of an export that gets more files. Without one, or with a damaged list, nobody knows what the files
    there were: they have none, and are not believed any more."""
    with suppress(OSError, ValueError):
        return digests.listed(folder)
    return {}


def _move_away(path: Path, folder: Path) -> None:
    if os.path.lexists(path):
        os.replace(path, folder / path.name)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all in a folder."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
