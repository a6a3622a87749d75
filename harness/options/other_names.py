"""Map options and values of torchvision, timm, ultralytics and Keras to the options here that do the same."""

from __future__ import annotations

_RATE = "--abs-learning-rate RATE, or --base-learning-rate-exponent for a rate proportional to the batch"
_RATE_OR_CURVE = f"{_RATE}, and --lr-schedule for its curve"
_STEPS = "--iterations with the number of weight updates"
_DEVICES = "--replicas (data-parallel copies) and --shards (IPUs of one copy)"
_POLICY = "--augment trivial, or --augment rand with --augment-magnitude"
_PLACE = "--logs-path for the run directory, or --log-dir for its parent"
OTHER_NAMES = {
    "aa": _POLICY,
    "amp": "--precision 16.32",
    "arch": "--model with --model-size",
    "auto-augment": _POLICY,
    "batch": "--batch-size",
    "bce-loss": "--loss bce",
    "bf16": "--precision bf16.32",
    "bs": "--batch-size",
    "checkpoint": "--restore-path with validation.py or restore.py, or --init-path to start from the weights",
    "cutmix": "--cutmix-lambda",
    "data": "--data-dir",
    "data-path": "--data-dir",
    "devices": _DEVICES,
    "early-stopping": "--patience",
    "erasing": "--random-erasing",
    "eval": "validation.py --restore-path RUN",
    "fp16": "--precision 16.16",
    "fp32": "--precision 32.32",
    "fp8": "--precision 8.16",
    "gpus": _DEVICES,
    "grad-accum-steps": "--gradient-accumulation-count",
    "half": "--precision 16.16",
    "img-size": "--image-size",
    "imgsz": "--image-size",
    "input-size": "--image-size",
    "label-smooth": "--label-smoothing",
    "learning-rate": _RATE,
    "lr": _RATE_OR_CURVE,
    "lr0": _RATE,
    "max-steps": _STEPS,
    "max-grad-norm": "--clip-grad-norm",
    "mixup": "--mixup-alpha",
    "model-ema": "--ema DECAY",
    "network": "--model with --model-size",
    "num-epochs": "--epochs",
    "num-workers": "--pipeline-num-parallel",
    "opt": "--optimiser",
    "output": _PLACE,
    "output-dir": _PLACE,
    "pretrained": "--init-path efficientnet-lite0, or --init-path RUN",
    "random-erase": "--random-erasing",
    "reprob": "--random-erasing",
    "resume": "restore.py --restore-path RUN",
    "save-dir": _PLACE,
    "sched": "--lr-schedule",
    "scheduler": "--lr-schedule",
    "smoothing": "--label-smoothing",
    "steps": _STEPS,
    "tensorboard": "no option, because every run directory has TensorBoard events",
    "warmup": "--warmup-epochs",
    "wd": "--weight-decay",
    "weights": "--init-path to start from weights, or validation.py --restore-path to validate weights",
    "workers": "--pipeline-num-parallel",
}
OTHER_VALUES = {
    "device": {"cuda": "gpu", "cuda:0": "gpu"},
    "precision": {
        **dict.fromkeys(("fp16", "float16", "half"), "16.16"),
        **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed"), "bf16.32"),
        **dict.fromkeys(("fp32", "float32", "full"), "32.32"),
        **dict.fromkeys(("mixed", "amp", "16-mixed", "mixed_float16"), "16.32"),
        "fp8": "8.16",
    },
}
