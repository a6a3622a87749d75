#!/bin/sh
# A small twin of a large recipe: what it would be, its layers, a training, its average. SHORT=1: a few updates only.
set -eu
python=${PYTHON:-.venv/bin/python}
runs=${RUNS:-logs/walks}
short=${SHORT:+--precision 32.32 --iterations 2 --ckpts-per-epoch 1000 --no-validation --gradient-accumulation-count 2}

$python train.py --config mk2_resnet50_mlperf_pod16_bs20 --generated-data --dry-run
$python train.py --config resnet50_mlperf_mini --summary
$python train.py --config resnet50_mlperf_mini --logs-path "$runs/mini" $short
$python weight_avg.py --restore-path "$runs/mini" --mode mean -N 2 --filename "$runs/mini/ckpt/mean_of_two"
$python validation.py --restore-path "$runs/mini/ckpt/mean_of_two" --logs-path "$runs/mini-validation"
