"""--numerics changes no bit of a run, its file continues when a run resumes, and its chart shows every kind of tensor."""

from __future__ import annotations

import json
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import assert_same_bits, run, succeed, variables
from figures import checked

from cnn_harness.base.storage import run_files
from cnn_harness.emulator.numerics.observation import Observation
from cnn_harness.harness.reports import numerics_record

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


def observations(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / numerics_record.RECORD).read_text().splitlines()]


def test_observation_changes_no_bit(tmp_path):
    watched, plain = tmp_path / "watched", tmp_path / "plain"
    out = succeed("train", *WORDS, "--numerics", 2, "--stop-after", 3, "--logs-path", watched).out
    assert f"Numbers observed after update 2: {watched / 'numerics.svg'}" in out
    numerics_record.append(watched, Observation(4, 1.0, ()))  # of an update that will run again
    with (watched / numerics_record.RECORD).open("a") as file:
        file.write('null\n{"updates": 9, "ten')  # of a call that was killed
    succeed("restore", "--restore-path", watched)
    succeed("train", *WORDS, "--logs-path", plain)
    values = variables(watched, 5)
    assert_same_bits(values, variables(plain, 5))
    found = observations(watched)
    assert [each["updates"] for each in found] == [2, 4] and all(each["loss_scale"] == 128 for each in found)
    layers = {each["layer"] for each in found[-1]["tensors"]}
    assert len(found[-1]["tensors"]) == 3 * len(layers) and layers > {"all/b0/conv", "all/fc1/dense"}
    assert not (plain / numerics_record.RECORD).exists()
    texts = checked((watched / "numerics.svg").read_text())
    assert {"Weights", "Activations", "Gradients times the loss scale of 128", "first", "last"} <= set(texts)
    assert any(text.startswith("e5m2fnuz: 7.63e-06 to 57344") for text in texts)
    assert list((watched / "numerics").glob("events.out.tfevents.*"))
    assert all(run_files.is_own(path.name) for path in watched.iterdir() if path.is_file())


def test_missed_observation_is_made_on_resume(tmp_path):
    """The checkpoint of an update is written before its observation; resuming from it used to skip the observation."""
    words, folder = [*WORDS, "--numerics", 2], tmp_path / "run"
    succeed("train", *words, "--stop-after", 2, "--logs-path", folder)
    (whole,) = observations(folder)
    (folder / numerics_record.RECORD).unlink()
    succeed("restore", "--restore-path", folder, "--iterations", 4)
    assert [each["updates"] for each in observations(folder)] == [2, 4] and observations(folder)[0] == whole
    again = [*words, "--iterations", 4, "--logs-path", folder, "--autoresume"]
    assert "is complete" in succeed("train", *again).out
    numerics_record.truncate_after(folder, 2)
    assert "Numbers observed after update 4" in succeed("train", *again).out
    assert [each["updates"] for each in observations(folder)] == [2, 4] and "is complete" in succeed("train", *again).out


def test_later_observations_are_dropped_on_resume(tmp_path):
    file = tmp_path / numerics_record.RECORD
    for updates in (2, 4, 6):
        numerics_record.append(tmp_path, Observation(updates, 1.0, ()))
    lines = file.read_bytes().splitlines(keepends=True)
    due = {updates: numerics_record.is_missing(tmp_path, updates, 2) for updates in (0, 6, 7, 8)}
    assert due == {0: False, 6: False, 7: False, 8: True}
    numerics_record.truncate_after(tmp_path, 4)
    assert file.read_bytes() == lines[0] + lines[1]
    file.write_bytes(lines[0] + lines[1].rstrip())  # killed before the end of the line
    assert numerics_record.is_missing(tmp_path, 4, 2)
    numerics_record.truncate_after(tmp_path, 4)
    assert file.read_bytes() == lines[0]
    numerics_record.truncate_after(tmp_path / "none", 4)


def test_full_disk_error_names_file(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            numerics_record.append(tmp_path, Observation(2, 1.0, ()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.filename == str(tmp_path / numerics_record.RECORD)


def test_weights_are_observed_at_their_update(tmp_path):
    succeed("train", *WORDS, "--numerics", 5, "--logs-path", tmp_path / "run")
    (observation,) = observations(tmp_path / "run")
    values = variables(tmp_path / "run", 5)
    for each in observation["tensors"]:
        if each["kind"] == "weights":
            kernel = next(
                v for name, v in values.items() if name.startswith(f"{each['layer']}/") and name.endswith("kernel")
            )
            size = np.abs(np.float64(kernel.ravel()))
            assert each["exponents"] == {str(e): n for e, n in Counter((np.frexp(size[size > 0])[1] - 1).tolist()).items()}


def test_numerics_need_folder_and_positive_number():
    assert "--numerics 2 has no effect" in succeed("train", *WORDS, "--numerics", 2, "--no-logs", "--dry-run").out
    result = run("train", *WORDS, "--numerics", 0, "--dry-run")
    assert result.code == 2 and "numerics" in result.err
