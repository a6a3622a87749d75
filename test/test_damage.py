"""Checkpoints that are damaged are not trusted: the newest whole one goes on, and the run ends with the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from runs import assert_same_bits, rows, run, succeed, timeless, variables

from harness import checkpoints, saving

WORDS = (
    "--dataset", "fashion-mnist", "--model-size", 8, "--batch-size", 50, "--iterations", 6, "--seed", 3, "--precision", "32.32",
    "--optimiser", "momentum", "--log-freq", 2, "--batches-per-step", 2, "--ckpts-per-epoch", 100, "--valid-batch-size", 500,
)  # fmt: skip
NAMES = ("index", "data-00000-of-00001", "state.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run with checkpoints at 0, 2, 4, 6."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    succeed("train", *WORDS, "--logs-path", folder)
    assert [checkpoint.iteration for checkpoint in checkpoints.numbered(folder)] == [0, 2, 4, 6]
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
    **{f"{name} flipped at {place:g}": (name, flipped, place) for name in NAMES for place in (0, 0.5, 1)},
    **{f"{name} cut at {place:g}": (name, cut, place) for name in NAMES for place in (0, 0.5, 1)},
    **{f"{name} gone": (name, lambda file, _: file.unlink(), 0) for name in NAMES if name != "index"},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_any_file_is_noticed(damage, folder):
    name, strike, place = DAMAGES[damage]
    strike(folder / f"ckpt-6.{name}", place)
    found, (warning,) = checkpoints.latest(folder)
    assert found.iteration == 4 and f"ckpt-6.{name}" in warning and "left out" in warning


def test_a_run_goes_on_from_the_newest_whole_checkpoint_to_the_same_bits(whole, folder):
    flipped(folder / "ckpt-6.data-00000-of-00001", 0.4)
    cut(folder / "ckpt-4.index", 0.9)
    out = succeed("restore", "--restore-path", folder).out
    assert "checkpoint ckpt-6 is damaged" in out and "checkpoint ckpt-4 is damaged" in out
    assert f"Restoring training from latest checkpoint: {folder}/ckpt-2" in out
    assert_same_bits(variables(whole, 6), variables(folder, 6))
    for file in ("training.csv", "validation.csv"):
        assert timeless(whole / file) == timeless(folder / file)
    assert checkpoints.latest(folder)[1] == []  # they were written anew


def test_without_its_index_a_checkpoint_is_not_there(folder):
    (folder / "ckpt-6.index").unlink()
    assert checkpoints.latest(folder)[0].iteration == 4


def test_nothing_whole_is_one_line(folder):
    for number in (0, 2, 4, 6):
        flipped(folder / f"ckpt-{number}.data-00000-of-00001", 0.5)
    result = run("restore", "--restore-path", folder)
    assert result.code == 2 and result.err.count("\n") == 1
    assert (
        "all 4 checkpoints are damaged; of ckpt-6, ckpt-6.data-00000-of-00001 has other bytes than were written"
        in result.err
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"files": 3}', '{"files": {"x": 3}}', "\0", "[" * 50_000])
def test_a_damaged_manifest_is_damage(text, folder):
    (folder / "ckpt-6.manifest.json").write_text(text)
    found, (warning,) = checkpoints.latest(folder)
    assert found.iteration == 4 and "ckpt-6" in warning


def test_without_a_manifest_a_checkpoint_is_read_as_it_is(folder):
    """Other programs write none."""
    for file in folder.glob("*.manifest.json"):
        file.unlink()
    assert checkpoints.latest(folder) == (checkpoints.numbered(folder)[-1], [])
    flipped(folder / "ckpt-6.data-00000-of-00001", 0.5)
    result = run("restore", "--restore-path", folder, "--iterations", 8)
    assert result.code == 2 and "cannot be read" in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("stops_after", range(5))
def test_a_kill_between_any_two_files_lists_whole_checkpoints_only(stops_after, folder, monkeypatch):
    """The files of ckpt-6 are put in place anew; the process ends after some of them."""
    values, moved = variables(folder, 6), []
    rename = saving.os.replace

    def counted(source, target):
        if target.parent == folder:
            if len(moved) == stops_after:
                raise KeyboardInterrupt
            moved.append(target)
        rename(source, target)

    monkeypatch.setattr(saving.os, "replace", counted)
    try:
        saving.place(folder / "ckpt-6", values, {"host_steps": 3})
    except KeyboardInterrupt:
        assert len(moved) == stops_after < 4
    monkeypatch.undo()
    found, warnings = checkpoints.latest(folder)
    assert found.iteration == (6 if stops_after >= 4 else 4) and not warnings
    assert not [left for left in folder.iterdir() if left.name.startswith(".saving")]


def test_what_a_killed_process_left_is_swept_away(folder):
    left = folder / ".saving-abc"
    left.mkdir()
    (left / "ckpt-8.index").write_text("half")
    succeed("restore", "--restore-path", folder, "--iterations", 8)
    assert not left.exists() and checkpoints.latest(folder)[0].iteration == 8


def test_validation_leaves_out_what_it_cannot_read(folder, tmp_path):
    flipped(folder / "ckpt-4.data-00000-of-00001", 0.5)
    result = run("validation", "--restore-path", folder, "--logs-path", tmp_path / "log")
    assert result.code == 1 and "ckpt-4" in result.err and result.err.count("\n") == 1
    assert [row["name"] for row in rows(tmp_path / "log" / "validation.csv")] == ["ckpt-0", "ckpt-2", "ckpt-6"]
