"""Map options and values of torchvision, timm, ultralytics and Keras to the options here that do the same."""

from __future__ import annotations

from cnn_harness.emulator.plan.number_formats import OPERAND_NAMES

_RATE = "--abs-learning-rate RATE, or --base-learning-rate-exponent for a rate proportional to the batch"
_RATE_OR_CURVE = f"{_RATE}, and --lr-schedule for its curve"
_STEPS = "--iterations with the number of weight updates"
_DEVICES = "--replicas (data-parallel copies) and --shards (IPUs of one copy)"
_POLICY = "--augment trivial, or --augment rand with --augment-magnitude"
_FROZEN = "--variable-filter with words in the names of the variables to train, such as Top"
_GPU = "--device gpu, or --device cpu, and the environment variable CUDA_VISIBLE_DEVICES to choose GPUs"
_FAST = "--precision auto"
_NETWORK = "--model with --model-size"
_DROPOUT = "--dropout-rate (EfficientNet)"
_VALIDATE = "validation.py --restore-path RUN"
_PLACE = "--logs-path for the run directory, or --log-dir for its parent"
OTHER_NAMES = {
    "a": _NETWORK,
    "aa": _POLICY,
    "amp": _FAST,
    "arch": _NETWORK,
    "auto-augment": _POLICY,
    "b": "--batch-size",
    "batch": "--batch-size",
    "bce-loss": "--loss bce",
    "bf16": "--precision bf16.32",
    "bs": "--batch-size",
    "c": "--config",
    "checkpoint": "--restore-path with validation.py or restore.py, or --init-path to start from the weights",
    "cutmix": "--cutmix-lambda",
    "cuda": _GPU,
    "d": "--data-dir",
    "data": "--data-dir",
    "data-path": "--data-dir",
    "devices": _DEVICES,
    "drop": _DROPOUT,
    "drop-path": "--block-survival-prob with 1 minus the rate (EfficientNet)",
    "drop-rate": _DROPOUT,
    "dropout": _DROPOUT,
    "early-stopping": "--patience",
    "erasing": "--random-erasing",
    "eval": _VALIDATE,
    "evaluate": _VALIDATE,
    "fp16": "--precision 16.16",
    "fp32": "--precision 32.32",
    "fp8": "--precision 8.16",
    "freeze": _FROZEN,
    "freeze-backbone": _FROZEN,
    "freeze-bn": "--frozen-norm-statistics moving",
    "freeze-layers": _FROZEN,
    "gpu": _GPU,
    "gpu-id": _GPU,
    "gpu-ids": _GPU,
    "gpus": _DEVICES,
    "grad-accum-steps": "--gradient-accumulation-count",
    "half": "--precision 16.16",
    "img-size": "--image-size",
    "imgsz": "--image-size",
    "input-size": "--image-size",
    "j": "--pipeline-num-parallel",
    "label-smooth": "--label-smoothing",
    "learning-rate": _RATE,
    "lr": _RATE_OR_CURVE,
    "lr0": _RATE,
    "m": _NETWORK,
    "max-steps": _STEPS,
    "max-grad-norm": "--clip-grad-norm",
    "mixed-precision": _FAST,
    "mixup": "--mixup-alpha",
    "model-ema": "--ema DECAY",
    "network": _NETWORK,
    "no-cuda": _GPU,
    "num-epochs": "--epochs",
    "num-workers": "--pipeline-num-parallel",
    "o": _PLACE,
    "opt": "--optimiser",
    "output": _PLACE,
    "output-dir": _PLACE,
    "pretrained": "--init-path efficientnet-lite0, or --init-path RUN",
    "print-freq": "--log-freq",
    "project": _PLACE,
    "random-erase": "--random-erasing",
    "reprob": "--random-erasing",
    "resume": "restore.py --restore-path RUN",
    "save-dir": _PLACE,
    "sched": "--lr-schedule",
    "scheduler": "--lr-schedule",
    "smoothing": "--label-smoothing",
    "steps": _STEPS,
    "tensorboard": "no option, because every run directory has TensorBoard events",
    "test-only": _VALIDATE,
    "use-amp": _FAST,
    "use-gpu": _GPU,
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
# Values that other options take.
OF_OTHER_OPTIONS = {
    "precision": dict.fromkeys(OPERAND_NAMES, "--weight-format, --activation-format and --gradient-format"),
}
