"""Checkpoints of a run folder: saving, finding, reading, and the little state that is not a variable; and weights
in one .npz file, which are read like a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from base import bounds
from base.fields import brief
from base.process import quiet
from base.storage import files, input_files
from base.storage.tables import DOUBTED
from harness.checkpoints import archives, bundles, manifests, saving
from harness.checkpoints.archives import ArchiveError
from harness.run import arguments
from harness.run.arguments import ASKED, CALLS, ITERATION, ROLLING, RUN_ID, SEED

if TYPE_CHECKING:
    import numpy as np

_DIGEST = "digest"
_MOST_JSON = 64 << 20  # bytes of options or a state, whose rows make most of it
_FIRST, _LATER = "arguments.json", "arguments_restore.json"
_STEP = "global_step"  # the variable that counts them
_NUMBERED = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})")
_Looked = TypeVar("_Looked")
Shapes = Mapping[str, tuple[int, ...]]
Call = tuple[str, int]  # one call of a run: its random name, and the updates done when it began


class CheckpointError(Exception):
    """A checkpoint that is not there, or does not fit."""


@dataclass(frozen=True)
class Checkpoint:
    """One saved state: the prefix of its files (or one .npz), and the updates done (-1: an average, or another name)."""

    prefix: str
    iteration: int

    @property
    def name(self) -> str:
        """As the logs call it."""
        return Path(self.prefix).name

    @property
    def state_path(self) -> Path:
        """Where the state lies that is not a variable."""
        return Path(self.prefix + ".state.json")


def at(folder: Path, iteration: int) -> Checkpoint:
    """The checkpoint of a run after so many updates, there or not yet."""
    return Checkpoint(str(folder / f"ckpt-{iteration}"), iteration)


def save(checkpoint: Checkpoint, values: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
    """Writes a numbered checkpoint, and the file that says which is the newest, where TensorFlow's own programs look."""
    prefix = Path(checkpoint.prefix)
    state = json.loads(json.dumps(state))  # as it will be read
    saving.place(prefix, values, {**state, _DIGEST: _digest(state)})
    named = f'"{prefix.name}"'
    try:
        files.write_atomically(
            prefix.parent / "checkpoint", f"model_checkpoint_path: {named}\nall_model_checkpoint_paths: {named}\n"
        )
    except OSError as error:
        raise saving.SaveError(f"{prefix.parent / 'checkpoint'} cannot be written: {error.strerror}") from None


def write(prefix: Path, values: Mapping[str, np.ndarray]) -> Checkpoint:
    """A checkpoint of these values alone; another one of that name is replaced."""
    saving.place(prefix, values)
    return Checkpoint(str(prefix), -1)


def fingerprint(values: Mapping[str, np.ndarray]) -> str:
    """16 hexadecimal digits that two sets of tensors share if names, types, shapes and all bits are the same."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(values):
        digest.update(f"{name} {values[name].dtype} {values[name].shape}".encode() + values[name].tobytes())
    return digest.hexdigest()


def tidy(folder: Path, newest: Checkpoint, count: int | None, on_grid: Callable[[int], bool]) -> None:
    """After `newest` is written: deletes the safety checkpoints before it, and all but the `count` newest others."""
    before = [checkpoint for checkpoint in numbered(folder) if checkpoint.iteration < newest.iteration]
    rolling = [old for old in before if old.iteration and not on_grid(old.iteration) and _rolls(old)]
    others = [old for old in before if old not in rolling]
    surplus = max(0, len(others) + 1 - count) if count else 0
    for old in rolling + others[:surplus]:
        saving.delete(Path(old.prefix))


def _rolls(checkpoint: Checkpoint) -> bool:
    try:
        return bool(state(checkpoint).get(ROLLING))
    except CheckpointError:  # damaged: it is passed over when it is looked for, and left as it is here
        return False


def numbered(folder: Path) -> list[Checkpoint]:
    """The ckpt-<n> of a folder in order of n."""
    found = []
    for index in indices(folder):
        match = _NUMBERED.fullmatch(index.name[: -len(".index")])
        if match:
            found.append(Checkpoint(str(index)[: -len(".index")], int(match[1])))
    return sorted(found, key=lambda checkpoint: checkpoint.iteration)


def indices(folder: Path) -> list[Path]:
    """The *.index directly in a folder; none if there is no folder, CheckpointError if it may not be looked into."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None
    return [folder / name for name in names if name.endswith(".index")]


def of_run(folder: Path) -> list[Checkpoint]:
    """Those that a run can go on from; CheckpointError if there are none."""
    require_folder(folder)
    return _numbered(folder, "--restore-path")


def require_folder(folder: Path) -> None:
    """CheckpointError for anything else that --restore-path names where a run is asked for."""
    _refuse_address("--restore-path", folder)
    if not folder.is_dir():
        raise CheckpointError(f"--restore-path {folder} is not a folder; give the run folder, as in logs/<run>")


def latest(folder: Path, option: str = "--restore-path") -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint of a run folder that is whole, and a line on each newer one that is not. Without TensorFlow
    where a manifest and a state tell it, which is nearly always; otherwise the tensors have to be read."""

    found = of_run(folder) if option == "--restore-path" else _numbered(folder, option)
    return _newest(found, f"{option} {folder}", _whole)


def _whole(checkpoint: Checkpoint) -> Checkpoint:
    """The same one; CheckpointError, without its name, if it cannot be read or holds other weights than those of its
    number. Of the tensors no more than their list is read where a manifest and a state tell it, and by TensorFlow they are
    read only where nothing else reads them."""
    told = ITERATION in _verified(checkpoint) and manifests.there(Path(checkpoint.prefix))
    if told:
        _shapes(checkpoint, verified=True)
    elif _held(checkpoint) is None:
        quiet.import_tensorflow()
        _read(checkpoint, verified=True)
    return checkpoint


def newest(
    folder: Path, option: str = "--restore-path", verified: Checkpoint | None = None
) -> tuple[Checkpoint, dict[str, np.ndarray], list[str]]:
    """The newest checkpoint of a run folder that can be read and holds the weights of its number, its tensors, and a line
    on each newer one that is damaged. `verified`: what `latest` gave, whose files are not held against their manifest
    again."""
    return newest_of(_numbered(folder, option), f"{option} {folder}", verified)


def newest_of(
    found: Iterable[Checkpoint], asked: str, verified: Checkpoint | None = None
) -> tuple[Checkpoint, dict[str, np.ndarray], list[str]]:
    """The same of some checkpoints, which `asked` stands for; the error of one that is alone is its own."""
    ordered = sorted(found, key=lambda checkpoint: checkpoint.iteration)
    if len(ordered) == 1:
        return ordered[0], read(ordered[0], ordered[0] == verified), []
    (checkpoint, values), warnings = _newest(ordered, asked, lambda each: (each, _read(each, each == verified)))
    return checkpoint, values, warnings


def _numbered(folder: Path, option: str) -> list[Checkpoint]:
    found = numbered(folder)
    if not found:
        raise CheckpointError(f"{option} {folder} holds no checkpoint (looked for {folder}/ckpt-<number>.index)")
    return found


def _newest(found: Sequence[Checkpoint], asked: str, look: Callable[[Checkpoint], _Looked]) -> tuple[_Looked, list[str]]:
    """What `look` gives of the last checkpoint for which it raises no CheckpointError."""
    damaged: list[tuple[str, CheckpointError]] = []
    for checkpoint in reversed(found):
        try:
            return look(checkpoint), [_left_out(name, why) for name, why in damaged]
        except CheckpointError as error:
            damaged.append((checkpoint.name, error))
    raise _all_damaged(asked, damaged)


def _all_damaged(asked: str, damaged: Sequence[tuple[str, CheckpointError]]) -> CheckpointError:
    return CheckpointError(f"{asked}: all {len(damaged)} checkpoints are damaged; of {damaged[0][0]}, {damaged[0][1]}")


def _verified(checkpoint: Checkpoint) -> dict[str, Any]:
    """The state; CheckpointError, without the checkpoint's name, if the files are not those that the manifest tells of, or
    the state is another checkpoint's."""
    wrong = manifests.damage(Path(checkpoint.prefix))
    if wrong:
        raise CheckpointError(wrong)
    kept = state(checkpoint)
    done, named = kept.get(ITERATION), manifests.number(checkpoint.name)
    if named is not None and done is not None and done != named:
        raise CheckpointError(f"{checkpoint.state_path.name} is of update {done}: the checkpoint was copied or renamed")
    if _belongs_elsewhere(checkpoint, kept):
        raise CheckpointError(
            "it is another run's, copied into this folder; --init-path begins a new run with weights of any run"
        )
    return kept


def _belongs_elsewhere(checkpoint: Checkpoint, kept: Mapping[str, Any]) -> bool:
    """Whether a state names another run than the options beside it. Under a name of its own it is no checkpoint of that run,
    and may be anybody's."""
    if not _NUMBERED.fullmatch(checkpoint.name):
        return False
    with suppress(CheckpointError):  # options that cannot be read tell nothing of it
        return bool(kept.get(RUN_ID)) and run_id(Path(checkpoint.prefix).parent) not in (None, kept[RUN_ID])
    return False


def run_id(folder: Path) -> str | None:
    """Of the run in a folder, as its options tell it; where those are an older version's, or somebody has changed them, as
    the first state does that tells it. None without options: the checkpoints may be anybody's then."""
    found = recorded(folder)
    if not found or found.get(RUN_ID):
        return found.get(RUN_ID)
    return next((kept[RUN_ID] for _, kept in _readable(folder) if kept.get(RUN_ID)), None)


def _readable(folder: Path) -> Iterator[tuple[Checkpoint, dict[str, Any]]]:
    """The checkpoints of a folder whose states can be read, and those."""
    for checkpoint in numbered(folder):
        with suppress(CheckpointError):
            yield checkpoint, state(checkpoint)


def _own(folder: Path) -> list[tuple[Checkpoint, dict[str, Any]]]:
    """The same, less those that another run's state came with."""
    own = (None, run_id(folder))
    return [(checkpoint, kept) for checkpoint, kept in _readable(folder) if kept.get(RUN_ID) in own]


def seeds(folder: Path, newest: Checkpoint) -> list[int]:
    """What the state of a run's newest checkpoint says of the seed; if it says nothing, what the others do."""
    told = {checkpoint: kept[SEED] for checkpoint, kept in _own(folder) if SEED in kept}
    return [told[newest]] if newest in told else sorted(set(told.values()))


def whole(found: Sequence[Checkpoint], most: int | None = None, finite: bool = True) -> tuple[list[Checkpoint], list[str]]:
    """Those that can be read and hold the weights of their numbers, or the last `most` of them, and a line on each other
    one that was looked at. `finite`: so must all values be."""
    kept, damaged = [], []
    for checkpoint in reversed(found):
        if len(kept) == most:
            break
        try:
            kept.append(_finite(_whole(checkpoint)) if finite else _whole(checkpoint))
        except CheckpointError as error:
            damaged.append(_left_out(checkpoint.name, error))
    return kept[::-1], damaged[::-1]


def _finite(checkpoint: Checkpoint) -> Checkpoint:
    """The same one, which is whole; CheckpointError, without its name, if a value is not finite."""
    import numpy as np

    found = _plain(checkpoint, checked=False)
    for name, value in (_tensors(checkpoint) if found is None else found).items():
        if not np.isfinite(value).all():
            raise CheckpointError(f"{brief(name)} holds values that are not finite")
    return checkpoint


def _left_out(name: str, why: CheckpointError) -> str:
    return f"warning: checkpoint {name} is damaged and left out: {why}"


def select(path: Path) -> list[Checkpoint]:
    """What `--restore-path` means to validation: all checkpoints of a folder (numbered first, then averages in
    its ckpt/ folder), or those whose prefix is given; or weights in a .npz file."""
    _refuse_address("--restore-path", path)
    file = archives.located(path)
    if file:
        return [Checkpoint(str(file), -1)]
    if path.is_dir():
        found = numbered(path)
        found += [Checkpoint(str(index)[: -len(".index")], -1) for index in sorted(indices(path / "ckpt"))]
        if not found:
            raise CheckpointError(
                f"--restore-path {path} holds no checkpoint (looked for ckpt-<number>.index and ckpt/*.index)"
            )
        return found
    prefix = meant(path)
    if prefix.with_name(prefix.name + ".index").exists():
        return [_at(prefix)]
    found = [_at(Path(str(index)[: -len(".index")])) for index in sorted(path.parent.glob(f"{path.name}*.index"))]
    if not found:
        _refuse_foreign("--restore-path", path)
        raise CheckpointError(
            f"--restore-path {path}: no such folder, and no checkpoint {path}*.index"
            f"; weights that come with the project: {', '.join(archives.BUNDLED)}"
        )
    return sorted(found, key=lambda checkpoint: checkpoint.iteration)


def meant(path: Path) -> Path:
    """The prefix of the checkpoint that a path means, which may be that of its index."""
    name = path.name.removesuffix(".index").removesuffix(".meta")
    return path.with_name(name) if name else path


def initial(path: Path) -> tuple[Checkpoint, dict[str, np.ndarray], list[str]]:
    """What `--init-path` means, and its tensors: a checkpoint's prefix, the newest checkpoint of a run folder that is
    whole, or weights in a .npz file; and a line on each newer one that is damaged."""
    found = beginning(path)
    if isinstance(found, Path):
        return newest(found, "--init-path")
    return found, read(found), []


def beginning(path: Path) -> Checkpoint | Path:
    """Where `--init-path` leads: to a checkpoint, or to a folder that has some. CheckpointError if to neither; weights in a
    .npz file are looked at."""
    _refuse_address("--init-path", path)
    file = archives.located(path)
    if file:
        for read_part in (archives.options, archives.arrays):
            _of_archive(read_part, file)  # refused before anything is written
        return Checkpoint(str(file), -1)
    if path.is_dir() and numbered(path):
        return path
    prefix = meant(path)
    if not path.is_dir() and prefix.with_name(prefix.name + ".index").exists():
        return _at(prefix)
    _refuse_foreign("--init-path", path)
    raise CheckpointError(
        f"--init-path {path}: no checkpoint there; give a run folder, a prefix as in logs/<run>/ckpt-500, a .npz file, "
        f"or {' or '.join(archives.BUNDLED)}"
    )


def _refuse_address(option: str, path: Path) -> None:
    """Nothing is fetched. A path has one slash where an address has two."""
    scheme, _, rest = str(path).partition(":/")
    if rest and scheme.isalnum() and not path.exists():
        raise CheckpointError(f"{option} {scheme}://{rest}: only files here are read; download it first, and give its path")


def _refuse_foreign(option: str, path: Path) -> None:
    """Other projects' files are named as such."""
    if path.suffix in archives.FOREIGN:
        raise CheckpointError(
            f"{option} {path}: weights of another project have to be imported first: python tools/import_weights.py {path}"
        )


def _at(prefix: Path) -> Checkpoint:
    number = manifests.number(prefix.name)
    return Checkpoint(str(prefix), -1 if number is None else number)


def run_folder(path: Path) -> Path:
    """Where the options of a restore path are recorded: the run folder, or the .npz file itself."""
    file = archives.located(path)
    if file:
        return file
    if path.is_dir():
        return path
    return path.parent.parent if path.parent.name == "ckpt" else path.parent


def state(checkpoint: Checkpoint) -> dict[str, Any]:
    """The state that is not a variable; empty if it is missing, or holds what cannot be. CheckpointError if it is not what
    was written."""
    return _state(checkpoint)[0]


def doubted(checkpoint: Checkpoint) -> bool:
    """Whether nothing vouches that a checkpoint's state is what was written: neither a digest nor a manifest."""
    return _state(checkpoint)[1]


def _state(checkpoint: Checkpoint) -> tuple[dict[str, Any], bool]:
    """The same, and whether it is `doubted`."""
    if not os.path.lexists(checkpoint.state_path):
        return {}, True
    found = _json(checkpoint.state_path)
    digest = found.pop(_DIGEST, None)
    if digest not in (None, _digest(found)):
        raise CheckpointError(f"{checkpoint.state_path.name} has other content than was written")
    vouched = digest is not None or manifests.vouches(checkpoint.state_path, Path(checkpoint.prefix))
    return found if arguments.sound_state(found) else {}, not vouched


def states(folder: Path, newest: Checkpoint) -> list[tuple[int, dict[str, Any]]]:
    """(updates, state) of every checkpoint on the way to `newest` of which the state is sound; DOUBTED is true in those that
    are `doubted`.

    What lies beside that way tells of updates that were done again: it was damaged and left out, and the run went on from
    an earlier one.
    """
    found = []
    for checkpoint in numbered(folder):
        if checkpoint.iteration <= newest.iteration:
            with suppress(CheckpointError):
                kept, unsure = _state(checkpoint)
                found.append((checkpoint.iteration, {**kept, DOUBTED: True} if unsure else kept))
    found = [(done, kept) for done, kept in found if kept.get(ITERATION) == done]
    way = next((calls(kept) for done, kept in found if done == newest.iteration), [])
    return [(done, kept) for done, kept in found if _on_the_way(done, calls(kept), way)]


def calls(state: Mapping[str, Any], begun: int | None = None) -> list[Call]:
    """The calls that a state tells of, in order, if it does; with `begun` a new one besides, which goes on from there."""
    before = [(name, since) for name, since in state.get(CALLS, ())]
    return before if begun is None else [*before, (secrets.token_hex(4), begun)]


def _on_the_way(done: int, earlier: Sequence[Call], way: Sequence[Call]) -> bool:
    """Whether the run came by a checkpoint after `done` updates; a state that tells of no calls is believed."""
    if not earlier or not way:
        return True
    ends = {name: following for (name, _), (_, following) in zip(way, [*way[1:], ("", done)])}
    return done <= ends.get(earlier[-1][0], -1)


def _digest(state: Mapping[str, Any]) -> str:
    """Of a state's content, which is checked where there is no manifest, too."""
    return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=8).hexdigest()


def _json(path: Path) -> dict[str, Any]:
    """A file with one JSON object."""
    try:
        found = bounds.json_value(input_files.content(path, _MOST_JSON))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {bounds.reason(error)}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged: it must hold one JSON object")
    return found


def read(checkpoint: Checkpoint, verified: bool = False) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint by name; CheckpointError for one that is damaged, or holds another update's weights
    than its name says. `verified`: the files have been held against their manifest."""
    file = archives.located(Path(checkpoint.prefix))
    if file:
        return _of_archive(archives.arrays, file)
    try:
        return _read(checkpoint, verified)
    except CheckpointError as error:
        raise _damaged(checkpoint, error) from None


def values(checkpoint: Checkpoint, verified: bool = False) -> dict[str, np.ndarray] | None:
    """What `read` gives, or its error, as far as the files tell without TensorFlow; None if they do not tell. `verified`:
    the files are known to be whole."""
    if archives.located(Path(checkpoint.prefix)):
        return read(checkpoint)
    try:
        if verified:
            return _plain(checkpoint, checked=False)
        _verified(checkpoint)
        return _held(checkpoint)
    except CheckpointError as error:
        raise _damaged(checkpoint, error) from None


def shapes(checkpoint: Checkpoint, verified: bool = False) -> Shapes | None:
    """Of the tensors that `read` gives, by name, or its error, as far as the files tell without TensorFlow; None if they do
    not tell."""
    if archives.located(Path(checkpoint.prefix)):
        return {name: value.shape for name, value in read(checkpoint).items()}
    try:
        return _shapes(checkpoint, verified)
    except CheckpointError as error:
        raise _damaged(checkpoint, error) from None


def shapes_of(
    found: Sequence[Checkpoint], asked: str, thorough: bool = False
) -> tuple[list[tuple[Checkpoint, Shapes | None]], list[str]]:
    """The same of some checkpoints, which `asked` stands for: of those that are not damaged, and a line on each other one.
    Files of several are held against their manifests only if that is to be `thorough`: it takes as long as to read them
    all, which whoever goes on with them does anyway."""
    if len(found) == 1:
        return [(found[0], shapes(found[0]))], []
    kept: list[tuple[Checkpoint, Shapes | None]] = []
    damaged: list[tuple[str, CheckpointError]] = []
    for checkpoint in found:
        try:
            kept.append((checkpoint, _shapes(checkpoint, verified=not thorough)))
        except CheckpointError as error:
            damaged.append((checkpoint.name, error))
    if damaged and not kept:
        raise _all_damaged(asked, damaged)
    return kept, [_left_out(name, why) for name, why in damaged]


def _shapes(checkpoint: Checkpoint, verified: bool) -> Shapes | None:
    """The same; errors without the checkpoint's name."""
    if not verified:
        _verified(checkpoint)
        if not manifests.there(Path(checkpoint.prefix)):
            _held(checkpoint)
    try:
        return bundles.shapes(Path(f"{checkpoint.prefix}.index"))
    except bundles.Damaged as error:
        raise CheckpointError(str(error)) from None


def _damaged(checkpoint: Checkpoint, why: CheckpointError) -> CheckpointError:
    return CheckpointError(f"checkpoint {checkpoint.prefix} is damaged: {why}")


def _read(checkpoint: Checkpoint, verified: bool = False) -> dict[str, np.ndarray]:
    """The same; errors without the checkpoint's name."""
    if not verified:
        _verified(checkpoint)
    return _of_its_number(checkpoint, _tensors(checkpoint))


def _held(checkpoint: Checkpoint) -> dict[str, np.ndarray] | None:
    """The same without TensorFlow, held against the checksums in the index; None if that cannot be told."""
    found = _plain(checkpoint, checked=True)
    return None if found is None else _of_its_number(checkpoint, found)


def _plain(checkpoint: Checkpoint, checked: bool) -> dict[str, np.ndarray] | None:
    try:
        return bundles.tensors(Path(f"{checkpoint.prefix}.index"), checked)
    except bundles.Damaged as error:
        raise CheckpointError(str(error)) from None


def _of_its_number(checkpoint: Checkpoint, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """These tensors; CheckpointError if they are of another update than the checkpoint's name says."""
    done, named = found.get(_STEP), manifests.number(checkpoint.name)
    if named is not None and done is not None and done.tolist() != named:
        raise CheckpointError(f"it holds the weights of update {brief(done.tolist())}: it was copied or renamed")
    return found


def _tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    import tensorflow.compat.v1 as tf

    try:
        reader = tf.train.NewCheckpointReader(checkpoint.prefix)
        found = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, ValueError, RuntimeError, LookupError) as error:
        raise CheckpointError(f"it cannot be read: {bounds.reason(error)}") from None
    text = next((name for name, value in found.items() if not hasattr(value, "dtype") or value.dtype.hasobject), None)
    if text is not None:
        raise CheckpointError(f"{brief(text)} holds no numbers")
    return found


def recorded_options(folder: Path) -> dict[str, Any]:
    """The options of the run in a folder (or of the weights in a file), as they were asked for."""
    found = recorded(folder)
    return {**found, **(found.get(ASKED) or {})}


def recorded(folder: Path) -> dict[str, Any]:
    """What the arguments files of the run in a folder say, if there are any; a later restore wins. What a .npz file says."""
    file, weights = record(folder), archives.located(folder)
    if not weights and not _says(file):
        return {}
    return _sound(file, _of_archive(archives.options, file) if weights else _json(file))


def _sound(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What a file says; CheckpointError if no run has recorded that."""
    wrong = arguments.wrong_option(found)
    if wrong:
        raise CheckpointError(f"{file} is damaged: {wrong}; put it back as the run wrote it")
    return found


def recorded_first(folder: Path) -> dict[str, Any]:
    """What the run in a folder recorded when it began; empty if that is lost."""
    file = folder / _FIRST
    with suppress(CheckpointError):
        return _sound(file, _json(file))
    return {}


def record(folder: Path) -> Path:
    """The file that tells the options of the run in a folder: that of its last restore, or of its beginning. One that was
    emptied tells as little as one that is not there. A .npz file tells its own."""
    last = folder / _LATER
    return archives.located(folder) or (last if _says(last) else folder / _FIRST)


def _says(file: Path) -> bool:
    """Whether there is a file that is not empty; one that cannot be read counts, as a link that leads nowhere."""
    with suppress(OSError):
        return b"".join(input_files.content(file, _MOST_JSON).split()) not in (b"", b"{}")
    return os.path.lexists(file)


def lost_record(folder: Path) -> str | None:
    """Why the options that are recorded of a run are not those of its last call, as its states tell of it. A later instance
    may have saved without recording any."""
    found, file = recorded(folder), record(folder)
    if file.name not in (_FIRST, _LATER) or found.get("instance"):
        return None
    known = None if file.name == _FIRST else calls(found)
    name = next((checkpoint.name for checkpoint, kept in _own(folder) if _is_later(calls(kept), known)), None)
    return f"{name} is of a later call of the run than {file}" if name else None


def _is_later(made: Sequence[Call], known: Sequence[Call] | None) -> bool:
    """Whether some calls of a run go on after those that are known, as far as they are; None: after the one that began it,
    which an older version may have left out."""
    if known is None:
        return len(made) > 1 or any(since for _, since in made)
    return bool(known) and len(made) > len(known) and made[: len(known)] == known


def doubts_of_record(folder: Path, lost: str | None) -> list[str]:
    """A line where the options of a run's last restore are `lost`, as `lost_record` tells, or those of its beginning, for
    which they stand, are lost or damaged. An instance that came later has none."""
    if lost:
        return [f"warning: {lost}, which tells the options; {_LATER} of that call is missing or empty"]
    first, last = folder / _FIRST, record(folder)
    if last.name != _LATER or recorded(folder).get("instance"):
        return []
    why = f"{first} is missing or empty"
    try:
        if _says(first):
            _sound(first, _json(first))
            return []
    except CheckpointError as error:
        why = str(error)
    return [f"warning: {why}; {last.name} tells the options"]


def _of_archive(read: Callable[[Path], Any], file: Path) -> Any:
    """The archive's own reader, with a checkpoint's error."""
    try:
        return read(file)
    except ArchiveError as error:
        raise CheckpointError(str(error)) from None
