"""Build the programs of a run from its network, data stream, loss and optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness import ipu_utils
from cnn_harness.Datasets._spec import DataSource, ReadRequest
from cnn_harness.Datasets.formats import class_names
from cnn_harness.Datasets.pipeline import augmentation, batching, normalisation
from cnn_harness.Datasets.pipeline.mixing import Mixing
from cnn_harness.Datasets.sources.generated import synthetic
from cnn_harness.harness.checkpoints import conversion
from cnn_harness.harness.options.sections import TrainingOptions
from cnn_harness.harness.programs import embedded, losses
from cnn_harness.harness.programs.embedded import Batches
from cnn_harness.harness.programs.losses import Loss
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run
from cnn_harness.ipu_utils import (
    CacheEntry,
    Features,
    InferenceProgram,
    InferenceSpec,
    LossScale,
    ObservingProgram,
    Score,
    Seed,
    Stream,
    TrainingProgram,
    TrainingSpec,
    WorkerGroup,
)


def training_program(
    run: Run,
    seed: int,
    first_update: int,
    recording: bool = False,
    group: WorkerGroup | None = None,
    cache_entry: CacheEntry | None = None,
) -> TrainingProgram:
    """Return the training program.

    The data stream starts at update `first_update`. If `recording` is True, the program records the times of its pipeline
    cells. `group` connects the instances (processes) that train together. `cache_entry` is the program's entry in the
    program cache, or None.
    """
    stream = _stream(run, run.training_request(first_update, seed), training=True)
    return ipu_utils.compile_training(training_spec(run, seed, recording, group), stream, cache_entry)


def training_spec(run: Run, seed: int, recording: bool = False, group: WorkerGroup | None = None) -> TrainingSpec:
    """Return everything that determines the results of a run's training."""
    options = run.options.training
    return ipu_utils.TrainingSpec(
        network=run.network,
        plan=run.plan,
        seed=seed,
        loss=_loss(run),
        correct=losses.correct,
        optimiser=options.update_rule(run.plan.global_batch),
        loss_scale=_loss_scale(options),
        weight_decay=options.weight_decay,
        decayed=run.is_decayed,
        trained=run.is_trained,
        frozen=run.frozen_statistics,
        clip_grad_norm=options.clip_grad_norm,
        ema=options.ema,
        gradient_noise=options.gradient_noise,
        fingerprints=options.fingerprints and run.options.logging.logs,
        fault=run.fault if group is None or group.instance == 0 else None,
        recording=recording,
        group=group,
    )


def _loss_scale(training: TrainingOptions) -> LossScale:
    rule = training.automatic_loss_scaling or ""
    return LossScale(training.loss_scaling, training.unscales_in_rate, rule, training.loss_scaling_period)


def observing_program(run: Run, seed: int) -> ObservingProgram:
    """Return a program that observes the network's activations and gradients on the first images of the training."""
    return ipu_utils.ObservingProgram(
        ipu_utils.ObservationSpec(
            network=run.network,
            loss=_loss(run),
            precision=run.plan.precision,
            micro_batches=run.plan.micro_batches_per_pass,
            norm_parts=run.plan.fold,
            frozen=run.frozen_statistics,
        ),
        _stream(run, run.training_request(0, seed), training=True),
        seed,
    )


def validation_program(run: Run, execution: Execution, cache_entry: CacheEntry | None = None) -> InferenceProgram:
    """Return the validation program, which counts samples, correct samples and top-5 hits, and adds up the losses.

    Samples that only fill the last micro-batch are not counted.
    """
    # If probabilities are averaged over an image and its mirror image, the loss is cross entropy, whatever --loss is.
    loss = Loss("cross-entropy" if run.mirrors else run.options.training.loss)
    score = Score(("correct", "samples", "top5", "loss"), partial(_validation_metrics, loss))
    return ipu_utils.compile_inference(
        _inference_spec(run, execution.seed, score), _validation_stream(run, execution), cache_entry
    )


def top_k_program(run: Run, execution: Execution, most: int) -> InferenceProgram:
    """Return a program that gives the `most` most probable classes of each validation image.

    step(k, k + 1) returns "answers" [batch, 1 + 2 * most] of micro-batch k. Each row contains the label, then the classes,
    then the probabilities of these classes. The label is negative if the row only fills the micro-batch.
    """

    def answers(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
        best = tf.math.top_k(tf.nn.softmax(tf.cast(logits, tf.float32)), most)
        columns = [tf.cast(part, tf.float64) for part in (labels[:, None], best.indices, best.values)]
        return {"answers": tf.concat(columns, axis=1)}

    score = Score(("answers",), answers, (run.validation_batch, 1 + 2 * most))
    return ipu_utils.compile_inference(_inference_spec(run, execution.seed, score), _validation_stream(run, execution))


def feature_program(run: Run, seed: int) -> InferenceProgram:
    """Return a program that gives the features of each training image. The features are the input of the classifier.

    step(k, k + 1) returns "rows" [batch, 1 + features] of micro-batch k. Each row contains the label, then the features. The
    label is negative if the row only fills the micro-batch. The images are preprocessed as in validation, in the order of
    the data set.
    """
    features_of_image = conversion.classifier_shape(run)[0]

    def rows(features: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
        flat = tf.reshape(features, [-1, features_of_image])
        return {"rows": tf.concat([tf.cast(labels[:, None], tf.float64), tf.cast(flat, tf.float64)], axis=1)}

    spec = _inference_spec(run, seed, Score(("rows",), rows, (run.validation_batch, 1 + features_of_image)))
    source = run.data_source.training_in_order()
    stream = _stream(run, run.request(run.validation_batch, seed), training=False, source=source)
    return ipu_utils.compile_inference(replace(spec, network=run.network.without_classifier()), stream)


def validation_images_at(run: Run, execution: Execution, records: Sequence[int]) -> list[np.ndarray]:
    """Return the images with these indices in the validation set, resized and cropped, but not normalised: uint8
    [side, side, 3]."""
    size = run.data_source.spec.validation_images
    request = replace(run.validation_request(execution), batch_size=1, eight_bit_io=True)
    images = []
    with tf.Graph().as_default(), tf.Session() as session:
        for record in records:  # Build a data stream that contains only this image.
            only = replace(request, start=record, shard_block=1, shard_stride=size)
            iterator = tf.data.make_initializable_iterator(run.data_source.validation(only))
            session.run(iterator.initializer)
            images.append(session.run(iterator.get_next()["image"])[0])
    return images


def first_training_images(run: Run, seed: int, start: int, most: int) -> dict[str, bytes]:
    """Return the first images of this instance's training after `start` updates, augmented and mixed, as PNG files.

    The keys of the result are the number and the class name of each image. A separate data stream produces the images. They
    equal the images of the training, because random numbers depend only on seed and position.
    """
    request, names = run.training_request(start, seed), class_names.for_spec(run.data_source.spec)
    with tf.Graph().as_default(), tf.Session() as session:
        stream = _stream(run, request, training=True)
        iterator = tf.data.make_initializable_iterator(stream.dataset()) if stream.dataset else None
        at = tf.constant(start, tf.int64), tf.constant(0, tf.int64)
        features = stream.features(seed, iterator.get_next() if iterator else {}, *at)
        shown = normalisation.visible(features["image"][:most], request, run.data_source.spec.standardised)
        encoded = tf.map_fn(tf.io.encode_png, shown, fn_output_signature=tf.string)
        if iterator:
            session.run(iterator.initializer)
        files, labels = session.run([encoded, features["label"]])
    class_names_shown = (names[label] if names else f"class {label}" for label in labels)
    return {f"{k:03d} {name}": file for k, (name, file) in enumerate(zip(class_names_shown, files))}


def frozen_program(run: Run, seed: int, values: Mapping[str, np.ndarray] | None, identity: str) -> bytes:
    """Return a frozen program (a file's content) that takes uint8 images. `values` contains the weights; if it is None, the
    initial weights are used."""
    request = replace(run.request(run.validation_batch, seed), eight_bit_io=True)
    return ipu_utils.freeze(
        run.network,
        shape=embedded.shape(run),
        prepare=lambda images: run.data_source.on_device(images, request),
        values=values,
        seed=seed,
        precision=run.plan.precision,
        identity=identity,
    )


def portable_graph(run: Run, values: Mapping[str, np.ndarray]) -> tf.GraphDef:
    """Return the network with the weights `values` as a graph for other runtimes. The graph takes uint8 images."""
    request = replace(run.request(run.validation_batch), eight_bit_io=True)

    def prepare(images: tf.Tensor) -> tf.Tensor:
        if run.data_source.spec.standardised:
            return augmentation.sized(normalisation.standardise_in_floats(images), request.image_size)
        return run.data_source.on_device(images, request)

    side = embedded.shape(run)[1]
    return ipu_utils.portable_graph(run.network, side=side, prepare=prepare, values=values)


def training_images_uint8(run: Run, seed: int, count: int) -> np.ndarray:
    """Return the first `count` training images, or all if there are fewer: uint8 [count, side, side, 3]. The images are not
    augmented."""
    count = min(count, run.data_source.spec.train_images)
    request = replace(run.request(count, seed), eight_bit_io=True, augment=False)
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(run.data_source.train(request))
        session.run(iterator.initializer)
        return session.run(iterator.get_next()["image"])


def validation_batches_uint8(run: Run, execution: Execution, count: int) -> Batches:
    """Return the first `count` micro-batches of the validation set, or all if there are fewer."""
    request = replace(run.validation_request(execution), eight_bit_io=True)
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(run.data_source.validation(request).take(count))
        session.run(iterator.initializer)
        next_batch, batches = iterator.get_next(), []
        try:
            while True:
                batches.append(session.run([next_batch["image"], next_batch["label"]]))
        except tf.errors.OutOfRangeError:
            pass
    return Batches(tuple(images for images, _ in batches), tuple(labels for _, labels in batches))


def prediction_program(run: Run, seed: int, request: ReadRequest, images: Iterable[np.ndarray]) -> InferenceProgram:
    """Return a program whose step(k, k + 1) gives the class probabilities of image k.

    Each of `images` has the shape [side, side, 3]. `images` is iterated again after each rewind of the program.
    """
    side = request.image_size

    def single() -> Iterator[dict[str, np.ndarray]]:
        for image in images:
            yield {"image": image[None], "label": np.zeros(1, np.int32)}

    def dataset() -> tf.data.Dataset:
        kinds = {"image": tf.TensorSpec([1, side, side, 3], tf.float32), "label": tf.TensorSpec([1], tf.int32)}
        return tf.data.Dataset.from_generator(single, output_signature=kinds)

    def prepare(_: Seed, features: Features) -> Features:
        return {**features, "image": run.data_source.on_device(features["image"], request)}

    probabilities = Score(
        ("probabilities",), lambda logits, _: {"probabilities": tf.nn.softmax(logits)[0]},
        (run.network.nodes[-1].shape.elements,),
    )  # fmt: skip
    return ipu_utils.compile_inference(_inference_spec(run, seed, probabilities), ipu_utils.stream_of(dataset, prepare))


def _inference_spec(run: Run, seed: int, score: Score) -> InferenceSpec:
    """Return everything that determines the results of an inference program, except the images."""
    return InferenceSpec(
        network=run.network,
        score=score,
        device=run.plan.stage_devices[0],
        precision=run.plan.precision,
        seed=seed,
        mirrored=run.mirrors,
    )


def _loss(run: Run) -> Loss:
    return Loss(run.options.training.loss, run.options.training.label_smoothing or 0.0, class_weights(run))


def class_weights(run: Run) -> tuple[float, ...]:
    """Return the loss weight of each class, or () without --class-weights. The formula is that of scikit-learn's "balanced"
    class weights."""
    counts = run.data_source.spec.class_images if run.options.training.class_weights else ()
    return tuple(sum(counts) / (len(counts) * count) for count in counts)


def _validation_stream(run: Run, execution: Execution) -> Stream:
    return _stream(run, run.validation_request(execution), training=False)


def _stream(run: Run, request: ReadRequest, training: bool, source: DataSource | None = None) -> Stream:
    """Return the stream of a request from the data set of the run, or from another `source`."""
    source = source or run.data_source
    mixes = training and run.options.dataset.mixes
    on_host = run.options.dataset.hostside_image_mixing

    def prepare(seed: Seed, features: Features) -> Features:
        """Return the features after the device has normalised the images and, unless the host does so, mixed them."""
        features = {**features, "image": source.on_device(features["image"], request, features.get("moments"))}
        return _mixing(run, seed)(features) if mixes and not on_host else features

    def dataset() -> tf.data.Dataset:
        stream = source.train(request) if training else source.validation(request)
        return stream.map(_mixing(run, request.seed)).prefetch(1) if mixes and on_host else stream

    if run.options.dataset.synthetic_data:
        return _synthetic_stream(run, request, training, prepare)
    return ipu_utils.stream_of(dataset, prepare)


def _mixing(run: Run, seed: Seed) -> Mixing:
    options = run.options.dataset
    return Mixing(
        mixup_alpha=options.mixup_alpha,
        cutmix_lambda=options.cutmix_lambda,
        cutmix_version=options.cutmix_version,
        micro_batch_size=run.plan.micro_batch_size,
        seed=seed,
    )


def _synthetic_stream(
    run: Run, request: ReadRequest, training: bool, prepare: Callable[[Seed, Features], Features]
) -> Stream:
    """Return a stream of data that the device generates. Samples after the end of the validation set get the label -1."""
    limit = None if training else run.data_source.spec.validation_images
    of_run = replace(request, start=run.training_request(0, request.seed).start) if training else request

    def features(seed: Seed, _: Features, step: tf.Tensor, pass_index: tf.Tensor) -> Features:
        samples_per_update = run.plan.micro_batch_size * run.plan.micro_batches
        sample = step * samples_per_update + tf.cast(pass_index, tf.int64) * request.batch_size
        position = batching.sample_position(of_run, sample + tf.range(request.batch_size, dtype=tf.int64))
        image, label = synthetic(run.data_source.spec, replace(request, seed=seed), position)
        if limit is not None:
            label = tf.where_v2(position < limit, label, -1)
        return prepare(seed, {"image": image, "label": label, "position": position})

    return Stream(features)


def _validation_metrics(loss: Loss, logits: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    real = tf.cast(labels >= 0, tf.float32)
    return {
        "correct": tf.reduce_sum(losses.correct(logits, labels)),
        "samples": tf.reduce_sum(real),
        "top5": tf.reduce_sum(losses.top_5_correct(logits, labels)),
        "loss": tf.reduce_sum(loss(logits, {"label": tf.maximum(labels, 0)}) * real),
    }
