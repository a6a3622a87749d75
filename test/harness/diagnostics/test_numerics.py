"""--numerics beside a run: no bit of it changes, the file goes on with the run, the picture shows every kind of tensor."""

from __future__ import annotations

import resource
from collections import Counter

import numpy as np
import pytest
from commands import assert_same_bits, run, succeed, variables
from figures import checked

from base.storage import run_files
from emulator.numerics.observation import Observation
from harness.diagnostics import picture, record

WORDS = [
    "--dataset",
    "fashion-mnist",
    "--model-size",
    "8",
    "--batch-size",
    "8",
    "--seed",
    "3",
    "--no-validation",
    "--precision",
    "8.16",
    "--iterations",
    "5",
]


def test_a_run_is_observed_and_stays_the_same(tmp_path):
    watched, plain = tmp_path / "watched", tmp_path / "plain"
    out = succeed("train", *WORDS, "--numerics", 2, "--stop-after", 3, "--logs-path", watched).out
    assert f"Numbers observed after update 2: {watched / 'numerics.svg'}" in out
    record.append(watched, Observation(4, 1.0, ()))  # of an update that will be done again
    with (watched / record.NAME).open("a") as file:
        for line in ('{"updates": 1e400, "loss_scale": 1, "tensors": []}', "null", '{"tensors": {"a": 1}}'):
            file.write(f"{line}\n")
        file.write('{"updates": 9, "ten')  # of a call that was killed
    with (watched / record.NAME).open("ab") as file:
        file.write(b"\xff\xfe")  # of a disk that was full of something else
    succeed("restore", "--restore-path", watched)
    succeed("train", *WORDS, "--logs-path", plain)
    values = variables(watched, 5)
    assert_same_bits(values, variables(plain, 5))
    found = record.read(watched)
    assert [each.updates for each in found] == [2, 4] and all(each.scale == 128 for each in found)
    layers = {each.layer for each in found[-1].tensors}
    assert len(found[-1].tensors) == 3 * len(layers) and layers > {"all/b0/conv", "all/fc1/dense"}
    assert not (plain / record.NAME).exists()
    texts = checked((watched / "numerics.svg").read_text())
    assert {"Weights", "Activations", "Gradients times the loss scale of 128", "first", "last"} <= set(texts)
    assert any(text.startswith("e5m2fnuz: 7.63e-06 to 57344") for text in texts)
    assert list((watched / "numerics").glob("events.out.tfevents.*"))
    assert all(run_files.is_own(path.name) for path in watched.iterdir() if path.is_file())


def test_an_observation_that_a_kill_prevented_is_made_when_the_run_goes_on(tmp_path):
    """A checkpoint of the same update is written first, and a run that goes on from there never came by that update again."""
    words, folder = [*WORDS, "--numerics", 2], tmp_path / "run"
    succeed("train", *words, "--stop-after", 2, "--logs-path", folder)
    (whole,) = record.read(folder)
    (folder / record.NAME).unlink()
    succeed("restore", "--restore-path", folder, "--iterations", 4)
    assert [each.updates for each in record.read(folder)] == [2, 4] and record.read(folder)[0] == whole
    again = [*words, "--iterations", 4, "--logs-path", folder, "--autoresume"]
    assert "is complete" in succeed("train", *again).out
    record.truncate_after(folder, 2)
    assert "Numbers observed after update 4" in succeed("train", *again).out
    assert [each.updates for each in record.read(folder)] == [2, 4] and "is complete" in succeed("train", *again).out


def test_observations_of_any_number_are_cut_where_a_run_goes_on(tmp_path):
    """A run whose file had grown beyond what was read at once could not go on."""
    file, seen = tmp_path / record.NAME, (2, 4, 6, 4)
    for updates in seen:
        record.append(tmp_path, Observation(updates, 1.0, ()))
    lines = file.read_bytes().splitlines(keepends=True)
    with file.open("r+b") as stream:
        stream.truncate(300 << 20)  # of a disk that lost the rest
    assert (
        not record.is_missing(tmp_path, 6, 2) and record.is_missing(tmp_path, 8, 2) and not record.is_missing(tmp_path, 7, 2)
    )
    record.truncate_after(tmp_path, 6)
    assert file.read_bytes() == b"".join(lines)
    record.truncate_after(tmp_path, 4)  # one in between goes
    assert file.read_bytes() == lines[0] + lines[1] + lines[3]
    file.write_bytes(lines[0] + lines[1].rstrip())  # killed before the line's end
    assert record.is_missing(tmp_path, 4, 2)
    record.truncate_after(tmp_path, 4)
    assert file.read_bytes() == lines[0]
    record.truncate_after(tmp_path / "none", 4)


def test_a_full_disk_is_told_with_the_file(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            record.append(tmp_path, Observation(2, 1.0, ()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.filename == str(tmp_path / record.NAME)


def test_weights_are_those_of_the_update(tmp_path):
    succeed("train", *WORDS, "--numerics", 5, "--logs-path", tmp_path / "run")
    (observation,) = record.read(tmp_path / "run")
    values = variables(tmp_path / "run", 5)
    for each in observation.tensors:
        if each.kind == "weights":
            kernel = next(v for name, v in values.items() if name.startswith(f"{each.layer}/") and name.endswith("kernel"))
            size = np.abs(np.float64(kernel.ravel()))
            assert each.exponents == Counter(np.frexp(size[size > 0])[1] - 1)
    assert "</svg>" in picture.draw(observation)


def test_numerics_need_a_folder_and_a_number():
    assert "--numerics 2 has no effect" in succeed("train", *WORDS, "--numerics", 2, "--no-logs", "--dry-run").out
    result = run("train", *WORDS, "--numerics", 0, "--dry-run")
    assert result.code == 2 and "must be at least 1" in result.err
