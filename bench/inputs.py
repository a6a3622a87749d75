"""Measure the input pipeline on JPEGs at 224 px, and how long training waits for a checkpoint.

The pipeline is compared with TensorFlow's own operations, and with PIL in worker processes. With a slow disk, the second
epoch, which reads from memory, is compared with the first.

python -m bench.inputs [--rounds 7] [--images 512]

The pipelines take turns in this process. Each ratio compares two neighbouring rounds.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from bench import _paired
from cnn_harness.Datasets._spec import OpenRequest, ReadRequest
from cnn_harness.Datasets.formats.tfrecord import RecordIndex
from cnn_harness.Datasets.imagenet import open_imagenet

SIDE, BATCH = 224, 32
Loader = Iterator[int]  # yields the number of images in each batch


def ours(folder: Path, **changes: object) -> Loader:
    """Return the training pipeline of this harness."""
    source = open_imagenet(OpenRequest(str(folder), {}))
    request = ReadRequest(**({"batch_size": BATCH, "image_size": SIDE, "seed": 1} | changes))
    return _batches(lambda: source.train(request))


def bare(folder: Path) -> Loader:
    """Return a pipeline of TensorFlow's own operations on as many threads. Checksums are not checked, and random draws are
    not reproducible."""
    files = sorted(str(file) for file in folder.glob("train-*"))
    features = {"image/encoded": tf.FixedLenFeature([], tf.string), "image/class/label": tf.FixedLenFeature([], tf.int64)}

    def prepared(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.parse_single_example(record, features)
        shape = tf.image.extract_jpeg_shape(parsed["image/encoded"])
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), min_object_covered=0.1, aspect_ratio_range=(0.75, 1.33), area_range=(0.05, 1.0),
            max_attempts=100, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(parsed["image/encoded"], window, channels=3, dct_method="INTEGER_FAST")
        image = tf.image.random_flip_left_right(image)
        return tf.image.resize_bilinear(image[None], [SIDE, SIDE])[0], parsed["image/class/label"]

    def stream() -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(files).cache().repeat().shuffle(256)
        return records.map(prepared, os.cpu_count()).batch(BATCH, drop_remainder=True).prefetch(2)

    return _batches(stream)


def pil(folder: Path) -> Loader:
    """Yield batches from worker processes, which decode, crop, resize and mirror with PIL and normalise with numpy."""
    index = RecordIndex(sorted(folder.glob("train-*")))
    encoded = [
        tf.train.Example.FromString(index.payload(k)).features.feature["image/encoded"].bytes_list.value[0]
        for k in range(len(index))
    ]
    pool = multiprocessing.get_context("fork").Pool(os.cpu_count(), _seed_worker, (encoded,))
    order = np.random.default_rng(1)
    try:
        while True:
            numbers = order.permutation(len(encoded))
            tasks = [numbers[i : i + BATCH] for i in range(0, len(numbers) - BATCH + 1, BATCH)]
            for batch in pool.imap(_pil_batch, tasks):
                yield len(batch)
    finally:
        pool.terminate()


_encoded: list[bytes] = []


def _seed_worker(encoded: list[bytes]) -> None:
    _encoded[:] = encoded


def _pil_batch(numbers: np.ndarray) -> np.ndarray:
    from PIL import Image

    random, found = np.random.default_rng(int(numbers[0])), []
    for k in numbers:
        with Image.open(io.BytesIO(_encoded[k])) as image:
            whole = image.convert("RGB")
        width, height = whole.size
        area, ratio = random.uniform(0.05, 1.0) * width * height, random.uniform(0.75, 1.33)
        w, h = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
        x, y = random.integers(width - w + 1), random.integers(height - h + 1)
        crop = whole.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
        pixels = np.asarray(crop, np.float32) / 255
        pixels = pixels[:, ::-1] if random.random() < 0.5 else pixels
        found.append((pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225))
    return np.stack(found).astype(np.float32)


def _batches(stream: Callable[[], tf.data.Dataset]) -> Loader:
    graph = tf.Graph()
    with graph.as_default():
        iterator = tf.data.make_initializable_iterator(stream())
        fetch = tf.group(*tf.nest.flatten(iterator.get_next()))
    session = tf.Session(graph=graph)  # no `with`: a default session would serve the other pipeline, too
    session.run(iterator.initializer)
    try:
        while True:
            session.run(fetch)
            yield BATCH
    finally:
        session.close()


def compare(name: str, one: Loader, other: Loader, rounds: int, seconds: float, least: float) -> None:
    """Print the speed of `other` divided by the speed of `one`. `least` is the ratio that we require."""
    for loader in (one, other):
        _speed(loader, seconds)
    speeds = _paired.turns([partial(_speed, loader, seconds) for loader in (one, other)], rounds)
    found = [b / a for a, b in zip(*speeds)]
    told = f"{statistics.median(speeds[0]):.0f} -> {statistics.median(speeds[1]):.0f} img/s"
    print(f"{name:<58} {_paired.spread(found):<22} {told:<24} at least {least}", flush=True)
    for loader in (one, other):
        loader.close()


def _speed(loader: Loader, seconds: float) -> float:
    started, images = time.perf_counter(), 0
    while (taken := time.perf_counter() - started) < seconds:
        images += next(loader)
    return images / taken


def slow_disk(folder: Path, rounds: int) -> None:
    """Let every read from disk take 5 ms more, and compare the second epoch, which reads from memory, with the first."""
    source = open_imagenet(OpenRequest(str(folder), {}))
    read, size = RecordIndex._stored, source.spec.train_images // BATCH * BATCH

    def slowly(self: RecordIndex, record: int) -> tuple[bytes, str | None]:
        time.sleep(0.005)
        return read(self, record)

    RecordIndex._stored, found = slowly, []
    for _ in range(rounds):
        loader = _batches(lambda: source.train(ReadRequest(batch_size=BATCH, image_size=SIDE, seed=1)))
        times = []
        for _ in range(2):
            started, taken = time.perf_counter(), 0
            while taken < size:
                taken += next(loader)
            times.append(time.perf_counter() - started)
        found.append(times[0] / times[1])
        loader.close()
    RecordIndex._stored = read
    print(f"{'speed-up of the second epoch, 5 ms for each read':<58} {_paired.spread(found):<22}", flush=True)


def saving(rounds: int) -> None:
    """Print how long training waits for a checkpoint of ResNet-50 with momentum in FP32, and when it is on disk."""
    from cnn_harness.harness.checkpoints import write
    from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
    from cnn_harness.harness.checkpoints.write import Writer
    from cnn_harness.harness.programs.build import training_program
    from cnn_harness.harness.run import cli
    from cnn_harness.harness.run.resolve import prepare

    words = "--dataset imagenet --synthetic-data --model resnet --model-size 50 --optimiser momentum --precision 32.32"
    options = cli.parse([*words.split(), "--batch-size", "2"], "train", environ={}).options
    program = training_program(prepare(options, {}).run, 0, 0)
    stalls, whole = [], []
    with tempfile.TemporaryDirectory() as folder, Writer() as writer:
        for k in range(rounds):
            started = time.perf_counter()
            values = program.values()
            writer.submit(lambda: write.save_numbered(Checkpoint.at(Path(folder), k), values, {}))  # noqa: B023 - called before the next round
            stalls.append(time.perf_counter() - started)
            writer.wait_until_finished()
            whole.append(time.perf_counter() - started)
    print(f"{'saving ResNet-50 with momentum: training waits':<58} {_paired.spread(stalls)} s", flush=True)
    print(f"{'                                on disk after':<58} {_paired.spread(whole)} s", flush=True)


def main() -> None:
    """Run all measurements."""
    asked = _paired.arguments(__doc__, rounds=7, images=512, seconds=3)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        writer = Path(__file__).resolve().parent.parent / "test" / "helpers" / "photos.py"
        words = ["--train", str(asked.images), "--validation", "0"]
        subprocess.run([sys.executable, str(writer), made, *words], check=True)
        pil_loader = pil(folder)  # it must fork its processes before TensorFlow starts threads in this process
        next(pil_loader)
        compare("our speed-up over a PIL loader", pil_loader, ours(folder), asked.rounds, asked.seconds, 1.5)
        compare("our speed-up over TensorFlow's operations", bare(folder), ours(folder), asked.rounds, asked.seconds, 0.9)
        slow_disk(folder, max(2, asked.rounds // 2))
    saving(asked.rounds)


if __name__ == "__main__":
    main()
