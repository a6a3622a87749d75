"""Services that follow a run's measures beside its own files: TensorBoard, Weights & Biases, MLflow. The last two are
imported by name, where a call asks for them."""

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

from base.errors import OptionError
from base.fields import ONE_CALL, PER_INSTANCE
from harness.options.sections import LoggingOptions, with_trait
from harness.run.run import Run

_DECIDING = ("model", "dataset", "optimiser", "lr_schedule", "precision")  # of every run, whoever gave them
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}  # by itself it waits for minutes
_SUCCESS, _FAILURE = 1, 2  # how a session of TensorBoard's plug-in for hyperparameters ended
_LONGEST = 500  # characters of a parameter's value that MLflow takes


def check_installed(logging: LoggingOptions) -> None:
    """OptionError, with the command that installs it, if the package of a service is missing that a call asks for."""
    for name, distribution in (("wandb", "wandb"), ("mlflow", "mlflow-skinny")):
        if getattr(logging, name) and sys.modules.get(name) is None and importlib.util.find_spec(name) is None:
            raise OptionError(
                f"--{name} needs the package {distribution}, which is not installed: {sys.executable} -m pip install "
                f"{distribution}, or leave it out: --no-{name}"
            )


class Board:
    """TensorBoard's events in a run's folder."""

    def __init__(
        self, folder: Path, iteration: int, hyperparameters: Mapping[str, Any], pictures: Mapping[str, bytes] | None = None
    ) -> None:
        """Events of an earlier call after `iteration` count as superseded. `pictures`: PNG files by name, shown there."""
        import tensorflow.compat.v1 as tf

        with tf.Graph().as_default():
            # TensorFlow appends to a file of that name, through a link too: nobody can prepare a random one
            self._writer = tf.summary.FileWriter(str(folder), filename_suffix=f".{secrets.token_hex(4)}")
        self._writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), global_step=iteration)
        self._write_hparams("session_start_info", _session_start(hyperparameters))
        for name, file in (pictures or {}).items():
            width, height = struct.unpack(">2I", file[16:24])  # of a PNG file's header
            image = tf.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=file)
            self._writer.add_summary(
                tf.Summary(value=[tf.Summary.Value(tag=f"first pictures/{name}", image=image)]), iteration
            )
        self._writer.flush()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write a point of each chart."""
        import tensorflow.compat.v1 as tf

        shown = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_summary(tf.Summary(value=shown), step)
        self._writer.flush()

    def close(self, complete: bool) -> None:
        """End the file, and the plug-in's session, whose page has the options beside the last value of each chart."""
        self._write_hparams("session_end_info", _session_end(complete))
        self._writer.close()

    def _write_hparams(self, name: str, content: bytes) -> None:
        """Write a message of the plug-in for hyperparameters."""
        import tensorflow.compat.v1 as tf

        data = tf.SummaryMetadata.PluginData(plugin_name="hparams", content=content)
        value = tf.Summary.Value(tag=f"_hparams_/{name}", metadata=tf.SummaryMetadata(plugin_data=data))
        self._writer.add_summary(tf.Summary(value=[value]))


class WeightsAndBiases:
    """A run of Weights & Biases, which is never asked a question."""

    def __init__(self, project: str, name: str, values: Mapping[str, Any], run_id: str | None) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self._run = wandb.init(
            project=project, name=name, config=dict(values), id=run_id, resume="must" if run_id else None,
            settings=wandb.Settings(init_timeout=30, login_timeout=5),
        )  # fmt: skip

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send a point of each chart."""
        self._run.log(dict(values), step=step)

    def close(self, complete: bool) -> None:
        """Leave the end to the package, which sends what it holds when the process ends."""


class MLflow:
    """A run of MLflow, at the place that MLFLOW_TRACKING_URI names."""

    def __init__(self, experiment: str, name: str, values: Mapping[str, Any], run_id: str | None) -> None:
        for variable, value in _IMPATIENT.items():
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
        """Send a point of each chart."""
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self, complete: bool) -> None:
        """End the run; one that was stopped as such."""
        self._mlflow.end_run("FINISHED" if complete else "KILLED")


def hyperparameters(run: Run) -> dict[str, Any]:
    """Return the options that somebody or something gave this run, and those that decide on others, by name."""
    values, sources = run.options.values(), run.options.sources
    hidden = with_trait(PER_INSTANCE) | with_trait(ONE_CALL)
    names = dict.fromkeys((*_DECIDING, *(name for name in values if name in sources and name not in hidden)))
    return {name: values[name] for name in names if values[name] is not None} | {"global_batch": run.plan.global_batch}


def _session_start(values: Mapping[str, Any]) -> bytes:
    """A HParamsPluginData message of TensorBoard's plug-in with session_start_info, its field 3: there field 1 is a map of
    names to values, as in a Struct, and field 5 the time in seconds."""
    from google.protobuf.struct_pb2 import Struct

    plain = {
        name: value if isinstance(value, bool | int | float | str) else " ".join(map(str, value))
        for name, value in values.items()
    }
    fields = Struct()
    fields.update(plain)
    return _message(3, fields.SerializeToString(deterministic=True) + _time(5))


def _session_end(complete: bool) -> bytes:
    """A HParamsPluginData message with session_end_info, its field 4: there field 1 is the status, a success or a failure,
    and field 2 the time in seconds."""
    from google.protobuf.internal import encoder

    status = _SUCCESS if complete else _FAILURE
    return _message(4, encoder.TagBytes(1, 0) + encoder._VarintBytes(status) + _time(2))


def _time(field: int) -> bytes:
    from google.protobuf.internal import encoder

    return encoder.TagBytes(field, 1) + struct.pack("<d", time.time())


def _message(field: int, content: bytes) -> bytes:
    from google.protobuf.internal import encoder

    return encoder.TagBytes(field, 2) + encoder._VarintBytes(len(content)) + content
