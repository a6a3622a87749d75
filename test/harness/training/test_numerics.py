"""--numerics changes no bit of a run, its file continues when a run resumes, and its chart shows every kind of tensor."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import assert_same_bits, succeed, variables
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
