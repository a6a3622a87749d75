"""The fit of the classifier and the trial see training images only, and see them as validation sees its images."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import program
from PIL import Image
from streams import opened, request, take

from cnn_harness.Datasets._spec import ReadRequest
from cnn_harness.harness.checkpoints import conversion, read
from cnn_harness.harness.commands import entry
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.programs import build
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run
from cnn_harness.harness.training import fitting
from cnn_harness.harness.training.start import FreshStart

EXECUTION = Execution(seed=3)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """A folder with the same images, of different sizes, for training and for validation."""
    top, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(2)
    for name, colour in (("blue", (40, 60, 200)), ("green", (50, 160, 80))):
        (top / "train" / name).mkdir(parents=True)
        for k in range(10):
            noise = random.normal(0, 60, (40 + 5 * k, 90 - 4 * k, 3))
            Image.fromarray(np.uint8(np.clip(noise + colour, 0, 255))).save(top / "train" / name / f"{name}{k}.png")
    shutil.copytree(top / "train", top / "val")
    return top


def run_on(folder: Path, **changes: object) -> Run:
    options = {"image_size": 32, "micro_batch_size": 10, "seed": 3, "trial_epochs": 1, "validation_split": 0.0, **changes}
    values = {"config": "finetune", "data_dir": str(folder), "class_weights": "balanced", **options}
    return entry.checked_run(Call.of_values(values, "train"), FreshStart()).run


def fitted(run: Run, saves: bool = True) -> tuple[bool, list[str], dict[str, np.ndarray]]:
    """Return whether training is declined, the lines of the log, and the values with the fitted classifier."""
    source, values, _ = read.load_init_path(Path("efficientnet-lite0"))
    lines: list[str] = []
    with program(run) as trained:
        trained.load_initial(conversion.initial_tensors(run, source, values)[0])
        log = SimpleNamespace(note=lambda line, always=False: lines.append(line))
        declined = fitting.fit_classifier(SimpleNamespace(run=run, execution=EXECUTION, log=log, saves=saves), trained)
        return declined, lines, trained.values()


def test_features_are_those_of_validation(images):
    """The fitted classifier gives the images the same probabilities as in validation, for each image."""
    run = run_on(images, trial_epochs=0)
    values = fitted(run)[2]
    layer = conversion.classifier(run)
    with build.feature_program(run, 3) as features, build.top_k_program(run, EXECUTION, 2) as validated:
        rows = []
        for each, names in ((features, "rows"), (validated, "answers")):
            each.load({name: values[name] for name in (variable.name for variable in run.network.variables)})
            rows.append(np.concatenate([each.step(k, k + 1)[names] for k in range(2)]))
    logits = rows[0][:, 1:] @ values[f"{layer}/kernel"] + values[f"{layer}/bias"]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_array_equal(rows[0][:, 0], rows[1][:, 0])
    np.testing.assert_allclose(probabilities.max(1), rows[1][:, 3], rtol=1e-4)


def test_trial_does_not_see_validation_images(images, tmp_path):
    """Other validation images, with swapped labels, change neither the fit nor the decision."""
    other = tmp_path / "other"
    shutil.copytree(images / "train", other / "train")
    for name, of in (("blue", "green"), ("green", "blue")):
        shutil.copytree(images / "val" / of, other / "val" / name)
    (declined, lines, _), again = fitted(run_on(images)), fitted(run_on(other))
    assert lines[-1].startswith("Trial: 1 epochs without ")
    assert " held-out training images changed the accuracy on them from " in lines[-1]
    assert (declined, lines) == again[:2]


@pytest.mark.parametrize(
    ("files", "saves", "most", "reason"),
    [
        (10, False, 100, "the run saves no checkpoints"),
        (10, True, 19, "there are more than 19 training images"),
        (1, True, 100, "there are too few training images"),
    ],
)
def test_run_without_trial_is_not_declined(images, tmp_path, monkeypatch, files, saves, most, reason):
    shutil.copytree(images, tmp_path / "some")
    for k in range(files, 10):
        for file in (tmp_path / "some" / "train").glob(f"*/*{k}.png"):
            file.unlink()
    monkeypatch.setattr(fitting, "MAX_TRIED", most)
    declined, lines, _ = fitted(run_on(tmp_path / "some", micro_batch_size=min(10, files)), saves)
    assert not declined and lines[-1] == f"No trial, because {reason}. So all layers are trained"


def test_class_without_readable_images_has_a_trial(images, tmp_path):
    shutil.copytree(images, tmp_path / "some")
    for k in range(10):
        file = tmp_path / "some" / "train" / "blue" / f"blue{k}.png"
        file.unlink() if k > 1 else file.write_bytes(file.read_bytes()[:-40])
    lines = fitted(run_on(tmp_path / "some", skip_bad_records=10, micro_batch_size=2))[1]
    assert " held-out training images changed the accuracy on them from " in lines[-1]


def test_held_out_records_are_not_trained(images):
    source = opened("imagefolder", images)
    part, asked = source.with_held_out([4, 5, 14]), request(batch_size=1, image_size=40, augment=False)

    def pixels(make: Callable[[ReadRequest], tf.data.Dataset], count: int) -> list[bytes]:
        return [batch["image"].tobytes() for batch in take(lambda: make(asked), count)]

    everything, held_out = pixels(source.training_in_order().validation, 20), pixels(part.validation, 3)
    assert (part.spec.train_images, part.spec.validation_images) == (17, 3)
    assert held_out == [everything[k] for k in (4, 5, 14)]
    assert sorted(pixels(part.train, 17)) == sorted(set(everything) - set(held_out))
