"""Damaged checkpoints are skipped: a run resumes from the newest intact one and ends with the same bits."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import fuzzing
import pytest
from commands import assert_same_bits, rows, run, succeed, timeless, variables

from cnn_harness.harness.checkpoints import find, read, run_record, write
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from cnn_harness.harness.run.recorded_arguments import RUN_ID

WORDS = (
    "--dataset", "fashion-mnist", "--model-size", 8, "--batch-size", 50, "--iterations", 6, "--seed", 3, "--precision", "32.32",
    "--optimiser", "momentum", "--log-freq", 2, "--batches-per-step", 2, "--ckpts-per-epoch", 100, "--valid-batch-size", 500,
)  # fmt: skip
NAMES = ("index", "data-00000-of-00001", "state.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return a run with checkpoints at 0, 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    succeed("train", *WORDS, "--logs-path", folder)
    assert [checkpoint.updates for checkpoint in find.numbered(folder)] == [0, 2, 4, 6]
    return folder


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def flipped(file: Path, place: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(place * (len(data) - 1))] ^= 0x10
    file.write_bytes(data)


def cut(file: Path, place: float) -> None:
    file.write_bytes(file.read_bytes()[: int(place * (file.stat().st_size - 1))])


DAMAGES = {
    **{f"{name} flipped at {place:g}": (name, flipped, place) for name in NAMES for place in (0.5,)},
    **{f"{name} cut at {place:g}": (name, cut, place) for name in NAMES for place in (0, 0.5)},
    **{f"{name} gone": (name, lambda file, _: file.unlink(), 0) for name in NAMES[1:]},
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_any_file_is_noticed(damage, folder):
    name, strike, place = DAMAGES[damage]
    strike(folder / f"ckpt-6.{name}", place)
    found, (warning,) = read.find_latest(folder)
    assert found.updates == 4 and f"ckpt-6.{name}" in warning and "skipped" in warning


@pytest.mark.slow
def test_resume_from_newest_intact_is_exact(whole, folder):
    flipped(folder / "ckpt-6.data-00000-of-00001", 0.4)
    cut(folder / "ckpt-4.index", 0.9)
    copied(folder, 2, 8, "index", "data-00000-of-00001", "state.json")
    with (folder / "training.csv").open("a") as table:
        table.write("4,8,0.0")  # written by a process that was killed
    out = succeed("restore", "--restore-path", folder).out
    assert all(f"checkpoint ckpt-{n} is damaged" in out for n in (8, 6, 4))
    assert f"Restoring training from latest checkpoint: {folder}/ckpt-2" in out
    assert_same_bits(variables(whole, 6), variables(folder, 6))
    for file in ("training.csv", "validation.csv"):
        assert timeless(whole / file) == timeless(folder / file)
    assert read.find_latest(folder)[0].updates == 6  # they were written again


def test_no_intact_checkpoint_is_one_line(folder):
    for number in (0, 2, 4, 6):
        flipped(folder / f"ckpt-{number}.data-00000-of-00001", 0.5)
    result = run("restore", "--restore-path", folder)
    assert result.code == 2 and result.err.count("\n") == 1
    assert "ckpt-6.data-00000-of-00001" in result.err and str(folder) in result.err


@pytest.mark.parametrize("text", ["", "[]", '{"files": 3}', '{"files": {"x": 3}}', "[" * 50_000])
def test_damaged_manifest_is_damage(text, folder):
    (folder / "ckpt-6.manifest.json").write_text(text)
    found, (warning,) = read.find_latest(folder)
    assert found.updates == 4 and "ckpt-6" in warning


def test_foreign_checkpoints_serve_as_initial_weights(folder):
    """Without manifest and state, TensorFlow's checksums verify the tensors, but no run resumes from them."""
    for file in (*folder.glob("*.manifest.json"), *folder.glob("*.state.json")):
        file.unlink()
    flipped(folder / "ckpt-6.data-00000-of-00001", 0.5)
    chosen, values, (warning,) = read.load_init_path(folder)
    assert chosen.updates == 4 and "checkpoint ckpt-6 is damaged and skipped" in warning
    assert_same_bits(values, variables(folder, 4))
    refused = run("restore", "--restore-path", folder)
    assert refused.code == 2 and "ckpt-4.state.json is missing" in refused.err


# --- Another update's weights ----------------------------------------------------------------------------------


def copied(folder: Path, source: int, target: int, *endings: str) -> None:
    """Copy the files of one checkpoint under the number of another."""
    for ending in endings:
        shutil.copy(folder / f"ckpt-{source}.{ending}", folder / f"ckpt-{target}.{ending}")


COPIES = {"tensors": NAMES[:2], "tensors and state": NAMES, "everything": (*NAMES, "manifest.json")}


@pytest.mark.parametrize("target", [6, 8])
@pytest.mark.parametrize("copy", COPIES)
def test_renumbered_checkpoint_is_rejected_everywhere(copy, target, folder, tmp_path):
    (folder / f"ckpt-{target}.manifest.json").unlink(missing_ok=True)
    copied(folder, 2, target, *COPIES[copy])
    good, name = (4 if target == 6 else 6), f"ckpt-{target}"
    chosen, values, (warning,) = read.load_network_in(folder)
    assert chosen.updates == good and name in warning and "skipped" in warning
    assert_same_bits(values, variables(folder, good))
    shown = read.load_network(find.select(folder), "--restore-path")  # for --predict
    assert shown[0] == chosen and shown[2] == [warning]
    assert read.find_latest(folder) == (chosen, [warning])
    begun = read.load_init_path(folder)
    assert begun[0] == chosen and begun[2] == [warning]
    with pytest.raises(CheckpointError, match="update 2"):
        read.load_init_path(folder / name)
    averaged = succeed("weight_avg", "--restore-path", folder, "--mode", "mean", "-N", 1, "--filename", tmp_path / "mean")
    assert warning in averaged.err and f"Using 1: ckpt-{good}" in averaged.out


@pytest.mark.parametrize("name", ["best", "other-ckpt-6"])
def test_renamed_checkpoint_keeps_its_manifest(name, folder, tmp_path):
    for file in folder.glob("ckpt-6.*"):
        shutil.copy(file, tmp_path / file.name.replace("ckpt-6", name))
    (found,) = find.select(tmp_path / name)
    assert_same_bits(read.tensors(found), variables(folder, 6))
    flipped(tmp_path / f"{name}.data-00000-of-00001", 0.5)
    with pytest.raises(CheckpointError, match=f"{name}.data-00000-of-00001 has changed"):
        read.tensors(found)


def test_any_damage_gives_right_weights_or_error(whole, tmp_path):
    """Any checkpoint that is accepted has the weights of its update."""
    wanted = {n: write.fingerprint(variables(whole, n)) for n in (0, 2, 4, 6)}

    def make(chance: random.Random) -> Path:
        shutil.rmtree(tmp_path / "fuzzed", ignore_errors=True)
        folder = shutil.copytree(whole, tmp_path / "fuzzed")
        return [spoil(chance, folder) for _ in range(chance.randint(1, 4))] and folder

    def restore(folder: Path) -> None:
        chosen, values, warnings = read.load_network_in(folder)
        assert write.fingerprint(values) == wanted[chosen.updates]
        assert all("\n" not in warning for warning in warnings)

    fuzzing.hold("run folder", 60, make, restore, CheckpointError)


def spoil(chance: random.Random, folder: Path) -> None:
    """Put a fault into a run directory."""
    files = sorted(folder.glob("ckpt-*"))
    file = chance.choice(files)
    kind = chance.choice(["bytes", "bytes", "gone", "swapped", "renumbered"])
    if kind == "bytes":
        file.write_bytes(fuzzing.damaged(chance, file.read_bytes()))
    elif kind == "swapped":
        other = chance.choice([other for other in files if other.suffix == file.suffix])
        if other != file:
            other.unlink()
            file.rename(other)
    elif kind == "renumbered":
        source, target = chance.sample([0, 2, 4, 6, 8, 10], 2)
        for part in folder.glob(f"ckpt-{source}.*"):
            part.replace(folder / part.name.replace(f"-{source}.", f"-{target}.", 1))
    else:
        file.unlink()


@pytest.mark.parametrize("stops_after", range(5))
def test_kill_between_files_lists_only_intact_checkpoints(stops_after, folder, monkeypatch):
    """The process ends while it moves the files of ckpt-6 into place again."""
    values, moved = variables(folder, 6), []
    rename = write.os.replace

    def counted(source, target):
        if target.parent == folder:
            if len(moved) == stops_after:
                raise KeyboardInterrupt
            moved.append(target)
        rename(source, target)

    monkeypatch.setattr(write.os, "replace", counted)
    try:
        write.write_checkpoint(folder / "ckpt-6", values, {"host_steps": 3})
    except KeyboardInterrupt:
        assert len(moved) == stops_after < 4
    monkeypatch.undo()
    found, warnings = read.find_latest(folder)
    assert found.updates == (6 if stops_after >= 4 else 4) and not warnings
    assert not [left for left in folder.iterdir() if left.name.startswith(".saving")]


def test_leftovers_of_killed_process_are_removed(folder):
    (folder / "ckpt").mkdir()
    for left in (folder / ".saving-abc", folder / "ckpt" / ".saving-def"):
        left.mkdir()
        (left / "ckpt-8.index").write_text("half")
    for name in (".arguments.json.77", ".training.csv.8", ".mine.9", ".arguments.json.old"):
        (folder / name).write_text("half")
    write.remove_unfinished(folder)
    assert not list(folder.rglob(".saving-*"))
    hidden = {path.name for path in folder.glob(".*")} - {".lock"}
    assert hidden == {".mine.9", ".arguments.json.old"}


@pytest.mark.slow
def test_validation_skips_unreadable_checkpoints(folder, tmp_path):
    flipped(folder / "ckpt-4.data-00000-of-00001", 0.5)
    result = run("validation", "--restore-path", folder, "--logs-path", tmp_path / "log")
    assert result.code == 1 and "ckpt-4" in result.err and result.err.count("\n") == 1
    assert [row["name"] for row in rows(tmp_path / "log" / "validation.csv")] == ["ckpt-0", "ckpt-2", "ckpt-6"]


def test_checkpoint_of_another_run_is_rejected(folder):
    """A copy with its state and manifest, as ckpt-6 of a run of the same network."""
    state = run_record.state(Checkpoint.at(folder, 6))
    others = {**state, run_record.RECORDED: {**state[run_record.RECORDED], RUN_ID: "another"}}
    write.save_numbered(Checkpoint.at(folder, 6), variables(folder, 6), others)
    for found, *_, (warning,) in (read.find_latest(folder), read.load_network_in(folder), read.load_init_path(folder)):
        assert found.updates == 4 and "ckpt-6" in warning and "of run another" in warning
    with pytest.raises(CheckpointError, match="of run another"):
        read.tensors(Checkpoint.at(folder, 6))
    (folder / "arguments.json").unlink()  # the run is unknown then
    assert read.find_latest(folder)[0].updates == 6
