"""The Python API gives the numbers of the commands and leaves the process unchanged."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import clothing
import numpy as np
import pytest
from commands import rows, succeed
from PIL import Image

from cnn_harness import api
from cnn_harness.base.errors import DataError, Failure, WrongInput
from cnn_harness.harness.checkpoints import find, read

TINY = {"model_size": 8, "micro_batch_size": 4, "batches_per_step": 3, "seed": 1, "quiet": True}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a run of ten updates in host steps of three, with the rows its callbacks received."""
    steps, validations = [], []
    folder = tmp_path_factory.mktemp("api") / "run"
    run = api.train(
        "quickstart", iterations=10, logs_path=folder, on_step=steps.append, on_validation=validations.append, **TINY
    )
    return run, steps, validations


def test_callbacks_get_each_update_and_validation_once(trained):
    run, steps, validations = trained
    assert [step["iteration"] for step in steps] == [*range(1, 11)]
    written = rows(run.folder / "training.csv")
    for row in written:
        ends = int(row["iteration"])
        of_host_step = steps[(ends - 1) // 3 * 3 : ends]
        assert np.mean([step["loss"] for step in of_host_step]) == float(row["loss_batch"])
        assert np.mean([step["accuracy"] for step in of_host_step]) == pytest.approx(float(row["train_acc_batch"]))
        assert of_host_step[-1]["epoch"] == float(row["epoch"])
    assert [{name: str(value) for name, value in row.items()} for row in validations] == rows(run.folder / "validation.csv")


def test_run_is_listed_exported_and_reported(trained, tmp_path):
    run, _, _ = trained
    (listed,) = api.runs(run.folder.parent)
    assert listed["folder"] == str(run.folder)
    assert listed["accuracy"] == run.accuracy
    exported = run.export(tmp_path / "exported", ["savedmodel", "frozen"], quiet=True)
    assert {"saved_model.pb", "labels.txt"} <= {file.name for file in exported.rglob("*")}
    page = run.report(tmp_path / "page.html", evaluation=False, quiet=True)
    assert run.folder.name in page.read_text()
    with pytest.raises(WrongInput, match="sort"):
        api.runs(run.folder.parent, "speed")


@pytest.mark.parametrize("call", [api.history, lambda run: api.compare({"a": run})], ids=["history", "compare"])
def test_unreadable_run_is_failure(call, tmp_path):
    (tmp_path / "training.csv").mkdir()
    with pytest.raises(Failure, match=re.escape(str(tmp_path))):
        call(tmp_path)


@pytest.mark.parametrize("table", ["training", "validation"])
def test_history_equals_table(table, trained, monkeypatch):
    run, _, _ = trained
    written = rows(run.folder / f"{table}.csv")
    frame = api.history(run, table)
    monkeypatch.setitem(sys.modules, "pandas", None)
    listed = api.history(run.folder, table)
    assert str(listed) == str(frame.to_dict("records"))  # equal, even if a value is nan
    assert [{name: str(value) for name, value in row.items()} for row in listed] == written
    assert {type(value) for row in listed for value in row.values()} <= {int, float, str}


def test_predict_matches_command(trained, tmp_path):
    run, _, _ = trained
    images = np.random.default_rng(0).integers(0, 256, (3, 40, 28, 3), np.uint8)
    files = [tmp_path / f"{k}.png" for k in range(3)]
    for image, file in zip(images, files):
        Image.fromarray(image).save(file)
    network = api.load(run.folder)
    found = network.predict(files)
    assert found.dtype == np.float32 and found.tobytes() == network.predict(images).tobytes()
    network.close()
    assert found[:1].tobytes() == network.predict(files[0]).tobytes()
    assert network.predict([]).shape == network.predict(images[:0]).shape == (0, found.shape[1])
    succeed("validation", "--restore-path", run.folder, "--predict", *files, "--output", tmp_path / "p.json")
    for answer, probabilities in zip(json.loads((tmp_path / "p.json").read_text()), found):
        for best in answer["top"]:
            assert best["probability"] == float(f"{probabilities[best['class']]:.6g}")
            assert best["name"] == network.class_names[best["class"]]


def test_evaluate_matches_validation(trained, tmp_path):
    run, _, validations = trained
    found = run.evaluate(quiet=True)
    assert {name: found[name] for name in ("val_acc", "top5_acc", "loss")} == {
        name: validations[-1][name] for name in ("val_acc", "top5_acc", "loss")
    }
    assert run.accuracy == found["val_acc"]
    clothing.write(tmp_path / "images", 2, 6)
    own = api.train(
        dataset="imagefolder", data_dir=tmp_path / "images", validation_split=0.5, model="resnet", image_size=32,
        abs_learning_rate=0.01, iterations=1, logs_path=tmp_path / "run", **{**TINY, "model_size": 10},
    )  # fmt: skip
    assert own.evaluate(quiet=True)["val_size"] == 6
    moved = (tmp_path / "images").rename(tmp_path / "moved")
    assert own.evaluate(moved, quiet=True)["val_size"] == 12


def test_interrupted_call_leaves_resumable_run(trained, tmp_path):
    run, steps, _ = trained
    again = []

    def stops_once(row):
        again.append(row)
        if row["iteration"] == 2:
            raise ArithmeticError
        if row["iteration"] == 5:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ArithmeticError):
        api.train("quickstart", iterations=10, logs_path=tmp_path / "run", on_step=stops_once, **TINY)
    with pytest.raises(KeyboardInterrupt):
        api.train(restore_path=tmp_path / "run", on_step=stops_once, quiet=True)
    api.train(restore_path=tmp_path / "run", on_step=stops_once, quiet=True)
    assert signal.getsignal(signal.SIGINT) is before
    assert again == [*steps[:2], *steps[3:]]  # the third update was done before the call of the second one ended
    tensors = [read.tensors(find.numbered(each)[-1]) for each in (run.folder, tmp_path / "run")]
    assert all(tensors[0][name].tobytes() == tensors[1][name].tobytes() for name in tensors[0])


def test_plan_matches_command(capsys):
    words = {"config": "mk2_resnet50_mlperf_pod16_bs20", "system": "POD16"}
    succeeded = succeed("plan", *(f"--{name}={value}" for name, value in words.items()), "--json", "-")
    assert json.loads(succeeded.out) == json.loads(json.dumps(api.plan(**words)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: api.train("quickstart", modle="resnet"), "unknown option modle=; did you mean model="),
        (lambda: api.train("quickstart", epochs="many"), "epochs is 'many' but must be"),
        (lambda: api.train("quickstart", on_step="print"), "on_step"),
        (lambda: api.load("nowhere"), "nowhere"),
        (lambda: api.history("nowhere"), "nowhere"),
        (lambda: api.finetune("nowhere"), "nowhere"),
        (lambda: api.load(3), "run is 3"),
    ],
)
def test_errors_are_project_errors(call, message):
    with pytest.raises(WrongInput, match=message) as raised:
        call()
    assert "--" not in str(raised.value)


@pytest.mark.parametrize(
    "images",
    [np.zeros((2, 8, 8, 3)), np.zeros((8, 8, 4), np.uint8), np.zeros((3, 8, 8), np.uint8), b"image", None, 3, {"a": 1},
     {"a.png"}, io.BytesIO(b"image"), [None], [np.zeros((8, 8), np.uint8)], Image.new("F", (8, 8)), "nowhere.png",
     [np.zeros((8, 8, 3), np.uint8)] * 65 + ["nowhere.png"]],
    ids=lambda images: type(images).__name__,
)  # fmt: skip
def test_wrong_images_are_rejected_and_network_stays_built(images, trained):
    network, image = trained[0], np.zeros((8, 8, 3), np.uint8)
    network.predict(image)
    built = network._predictor
    with pytest.raises(DataError) as raised:
        network.predict(images)
    assert "\n" not in str(raised.value)
    assert built and network._predictor is built and network.predict(image).shape == (1, 10)


def test_every_kind_of_images_gives_same_answers(trained, tmp_path):
    network = trained[0]
    pixels = np.random.default_rng(1).integers(0, 256, (2, 40, 28, 3), np.uint8)
    files = [tmp_path / "a.png", tmp_path / "b" / "c.png"]
    files[1].parent.mkdir()
    for image, file in zip(pixels, files):
        Image.fromarray(image).save(file)
    turned = Image.fromarray(np.rot90(pixels[0]))
    turned.getexif()[0x0112] = 6  # EXIF's orientation: turn by 90 degrees clockwise
    tensor = type("Tensor", (), {"__array__": lambda self, *_, **__: pixels})()
    expected = network.predict(pixels)
    mixed = [Image.fromarray(pixels[0]), files[1]]
    named = np.array([*map(str, files)])
    for given in (tmp_path, files, map(str, files), named, [*pixels], tensor, mixed, [turned, pixels[1]]):
        assert network.predict(given).tobytes() == expected.tobytes()
    assert network.predict(pixels[0]).tobytes() == network.predict(Image.open(files[0])).tobytes() == expected[:1].tobytes()


def test_threads_get_their_own_answers(trained):
    networks = [trained[0], *(api.load(trained[0].path) for _ in range(2)), copy.deepcopy(trained[0])]
    images = np.random.default_rng(2).integers(0, 256, (4, 32, 32, 3), np.uint8)
    expected = trained[0].predict(images)

    def ask(k):
        for shift in range(4):
            found = networks[(k + shift) % 4].predict(images[k])
            if shift == k == 1:
                networks[2].close()
            if found.tobytes() != expected[k : k + 1].tobytes():
                return False
        return trained[0].evaluate(quiet=True)["val_size"] == 2000

    stdout = sys.stdout
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(ask, range(4))] == [True] * 4
    assert sys.stdout is stdout


def test_forked_process_raises_error_instead_of_hanging(trained):
    image = np.zeros((8, 8, 3), np.uint8)
    trained[0].predict(image)
    child = os.fork()
    if not child:
        try:
            trained[0].predict(image)
        except WrongInput:
            trained[0].close()
            os._exit(0)
        finally:
            os._exit(1)
    end = time.monotonic() + 30
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)
    assert trained[0].predict(image).shape == (1, 10)
