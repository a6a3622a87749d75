#!/bin/sh
# README.md's first run: train, validate again, go on. Run in the repository; SHORT=1: a few updates only.
set -eu
python=${PYTHON:-.venv/bin/python}
runs=${RUNS:-logs/walks}
short=${SHORT:+--iterations 8 --stop-after 4}

$python train.py --config quickstart --dry-run
$python train.py --config quickstart --logs-path "$runs/quickstart" $short
$python validation.py --restore-path "$runs/quickstart" --logs-path "$runs/quickstart-validation"
if [ -n "$short" ]; then
    $python restore.py --restore-path "$runs/quickstart"
else
    $python restore.py --restore-path "$runs/quickstart" --epochs 9
fi
$python inference_embedded.py --config quickstart --restore-path "$runs/quickstart/ckpt-0" --iterations 20 --tmp-execs \
    --logs-path "$runs/quickstart-inference"
