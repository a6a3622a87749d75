"""Data without files: one random image and label, repeated in a host stream or in the device's graph.

Shapes and normalisation imitate another data set.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cnn_harness.Datasets._spec import DataSpec, InputStage, ReadRequest, whole_stream

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

_MEAN = 127.0
_DEVIATION = 60.0


def synthetic(spec: DataSpec, request: ReadRequest, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the generated sample for each position [n], in the device's graph: images and labels [n].

    The images are float32 [n, side, side, 3], as in a stream without `eight_bit_io`. Apply `on_device` to them next.
    """
    import tensorflow.compat.v1 as tf

    sample = _sample(spec, replace(request, eight_bit_io=False))
    image, label = (tf.repeat(sample[name][None], tf.shape(position)[0], axis=0) for name in ("image", "label"))
    image.set_shape([position.shape[0], request.image_size, request.image_size, 3])
    return image, label


class GeneratedSource:
    """A data set that repeats one random sample."""

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        from cnn_harness.Datasets.pipeline import batching

        return self._stream(batching.training_positions(request, request.batch_size), request, None)

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        import tensorflow.compat.v1 as tf

        from cnn_harness.Datasets.pipeline import batching

        size, batch = self.spec.validation_images, request.batch_size
        samples = tf.data.Dataset.range(batching.validation_micro_batches(request, size) * batch)
        positions = samples.map(partial(batching.sample_position, request)).batch(batch, drop_remainder=True)
        return self._stream(positions, request, size)

    def stages(self, request: ReadRequest, training: bool) -> list[InputStage]:
        return whole_stream(self, request, training)

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Normalise images like the imitated data set."""
        from cnn_harness.Datasets.pipeline import normalisation

        if self.spec.standardised:
            return normalisation.standardised_on_device(image, request, moments)
        return normalisation.normalised_on_device(image, request)

    def _stream(self, positions: tf.data.Dataset, request: ReadRequest, size: int | None) -> tf.data.Dataset:
        import tensorflow.compat.v1 as tf

        from cnn_harness.Datasets.pipeline import batching

        once = tf.data.Dataset.from_tensors(0).map(lambda _: _sample(self.spec, request)).cache().repeat()

        def element(position: tf.Tensor, sample: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            many = {name: tf.repeat(x[None], request.batch_size, axis=0) for name, x in sample.items()}
            if size is not None:
                real = position < size
                many["image"] *= tf.cast(real, many["image"].dtype)[:, None, None, None]
                many["label"] = tf.where_v2(real, many["label"], -1)
            return many | {"position": position}

        return batching.prefetched(tf.data.Dataset.zip((positions, once)).map(element))


def _sample(spec: DataSpec, request: ReadRequest) -> dict[str, tf.Tensor]:
    """Return an image [side, side, 3] as in a stream, and a label. Image and label depend only on the seed.

    The last class never occurs, as in the original harness.
    """
    import tensorflow.compat.v1 as tf

    from cnn_harness.base import draws
    from cnn_harness.Datasets.pipeline import augmentation, normalisation

    side = request.image_size
    drawn = tf.random.stateless_truncated_normal(
        [1, side, side, 3], draws.stateless_seed(request.seed, "data/generated-image"), _MEAN, _DEVIATION
    )
    image = tf.floor(tf.clip_by_value(drawn, 0.0, 255.0))  # whole numbers that fit into eight bits
    drawn_from = max(1, spec.num_classes - 1)
    sample = {"label": draws.uniform_below(drawn_from, draws.key(request.seed, "data/generated-label"), tf.constant(0))}
    if request.eight_bit_io:
        sample["image"] = tf.cast(image, tf.uint8)[0]
        if spec.standardised:
            sample["moments"] = normalisation.moments(image, augmentation.no_cuts(tf.zeros([1])))[0]
    elif spec.standardised:
        sample["image"] = normalisation.standardise(image)[0]
    else:
        sample["image"] = (normalisation.normalise(image, request) if request.hostside_norm else image)[0]
    return sample
