"""Send a run's metrics to TensorBoard, Weights & Biases and MLflow. The last two are imported only if requested."""

from __future__ import annotations

import importlib.util
import os
import secrets
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import ONE_CALL, PER_INSTANCE
from cnn_harness.harness.options.sections import LoggingOptions, with_trait
from cnn_harness.harness.run.run import Run

# These options are logged even if they have their default values.
_ALWAYS = ("model", "dataset", "optimiser", "lr_schedule", "precision")
_MLFLOW_LIMITS = {  # By default, MLflow tries for minutes to reach its server.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_SUCCESS, _FAILURE = 1, 2  # These are status codes of TensorBoard's HParams plug-in.
_LONGEST = 500  # MLflow rejects parameter values with more characters.


def check_installed(logging: LoggingOptions) -> None:
    """Raise OptionError if the package of a requested service is missing. The message shows how to install the package."""
    for name, distribution in (("wandb", "wandb"), ("mlflow", "mlflow-skinny")):
        if getattr(logging, name) and sys.modules.get(name) is None and importlib.util.find_spec(name) is None:
            raise OptionError(
                f"--{name} needs the package {distribution}. Install it with {sys.executable} -m pip install "
                f"{distribution}, or give --no-{name}"
            )


def event_writer(folder: Path) -> Any:
    """Return TensorFlow's writer of a new event file in a folder."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default():
        # TensorFlow appends to an existing file, even through a link. With a random name, there is no existing file.
        return tf.summary.FileWriter(str(folder), filename_suffix=f".{secrets.token_hex(4)}")


class Board:
    """Writes events for TensorBoard to a run directory."""

    def __init__(
        self, folder: Path, iteration: int, hyperparameters: Mapping[str, Any], images: Mapping[str, bytes] | None = None
    ) -> None:
        """Create an event file. TensorBoard then hides older events of steps after `iteration`. `images` are PNG files by
        name."""
        import tensorflow.compat.v1 as tf

        self._writer = event_writer(folder)
        self._writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), global_step=iteration)
        self._write_hparams("session_start_info", _session_start(hyperparameters))
        for name, file in (images or {}).items():
            width, height = struct.unpack(">2I", file[16:24])  # from the PNG header
            image = tf.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=file)
            self._writer.add_summary(
                tf.Summary(value=[tf.Summary.Value(tag=f"first images/{name}", image=image)]), iteration
            )
        self._writer.flush()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write a value of each metric."""
        import tensorflow.compat.v1 as tf

        shown = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_summary(tf.Summary(value=shown), step)
        self._writer.flush()

    def close(self, complete: bool) -> None:
        """Record whether the run is complete, and close the file."""
        self._write_hparams("session_end_info", _session_end(complete))
        self._writer.close()

    def _write_hparams(self, name: str, content: bytes) -> None:
        """Write a message for TensorBoard's HParams plug-in."""
        import tensorflow.compat.v1 as tf

        data = tf.SummaryMetadata.PluginData(plugin_name="hparams", content=content)
        value = tf.Summary.Value(tag=f"_hparams_/{name}", metadata=tf.SummaryMetadata(plugin_data=data))
        self._writer.add_summary(tf.Summary(value=[value]))


class WeightsAndBiases:
    """A run of Weights & Biases."""

    def __init__(self, project: str, name: str, values: Mapping[str, Any], run_id: str | None) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self._run = wandb.init(
            project=project, name=name, config=dict(values), id=run_id, resume="must" if run_id else None,
            settings=wandb.Settings(init_timeout=30, login_timeout=5),
        )  # fmt: skip

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send a value of each metric."""
        self._run.log(dict(values), step=step)

    def close(self, complete: bool) -> None:
        """Do nothing, because wandb itself ends the run when the process ends."""


class MLflow:
    """A run of MLflow, at the address in MLFLOW_TRACKING_URI."""

    def __init__(self, experiment: str, name: str, values: Mapping[str, Any], run_id: str | None) -> None:
        for variable, value in _MLFLOW_LIMITS.items():
            os.environ.setdefault(variable, value)
        import mlflow

        self._mlflow = mlflow
        mlflow.set_experiment(experiment)
        if run_id:
            mlflow.start_run(run_id=run_id)
        else:
            mlflow.start_run(run_name=name)
            mlflow.log_params({name: str(value)[:_LONGEST] for name, value in values.items()})

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send a value of each metric."""
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self, complete: bool) -> None:
        """End the run. Mark it as killed if it is not complete."""
        self._mlflow.end_run("FINISHED" if complete else "KILLED")


def hyperparameters(run: Run) -> dict[str, Any]:
    """Return the values of the options to log, by name: all options that were set, and the most important other options."""
    values, sources = run.options.values(), run.options.sources
    hidden = with_trait(PER_INSTANCE) | with_trait(ONE_CALL)
    names = dict.fromkeys((*_ALWAYS, *(name for name in values if name in sources and name not in hidden)))
    return {name: values[name] for name in names if values[name] is not None} | {"global_batch": run.plan.global_batch}


def _session_start(values: Mapping[str, Any]) -> bytes:
    """Return the protocol buffer HParamsPluginData with session_start_info (field 3).

    Field 1 of session_start_info maps names to values and has the same encoding as a Struct. Field 5 is the start time in
    seconds.
    """
    from google.protobuf.struct_pb2 import Struct

    plain = {
        name: value if isinstance(value, bool | int | float | str) else " ".join(map(str, value))
        for name, value in values.items()
    }
    fields = Struct()
    fields.update(plain)
    return _message(3, fields.SerializeToString(deterministic=True) + _time(5))


def _session_end(complete: bool) -> bytes:
    """Return the protocol buffer HParamsPluginData with session_end_info (field 4). Field 1 of session_end_info is the
    status, and field 2 is the end time in seconds."""
    from google.protobuf.internal import encoder

    status = _SUCCESS if complete else _FAILURE
    return _message(4, encoder.TagBytes(1, 0) + encoder._VarintBytes(status) + _time(2))


def _time(field: int) -> bytes:
    from google.protobuf.internal import encoder

    return encoder.TagBytes(field, 1) + struct.pack("<d", time.time())


def _message(field: int, content: bytes) -> bytes:
    from google.protobuf.internal import encoder

    return encoder.TagBytes(field, 2) + encoder._VarintBytes(len(content)) + content
