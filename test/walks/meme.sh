#!/bin/sh
# docs/paper.md: train at half resolution, average, fine-tune the classifier at the native one, validate; and the same
# training in two processes. SHORT=1: a few updates only.
set -eu
python=${PYTHON:-.venv/bin/python}
runs=${RUNS:-logs/walks}
quick=${SHORT:+--precision 32.32 --no-enable-recomputation --gradient-accumulation-count 1}
short=${SHORT:+--iterations 4 --ckpts-per-epoch 1000 --no-validation}
tuning=${SHORT:+--iterations 2}

$python train.py --config B0-G16-GN-Half_mini --logs-path "$runs/half" $quick $short
$python train.py --config B0-G16-GN-Native_mini --init-path "$runs/half/ckpt/weight_avg_exp_0.5" --replicas 4 --shards 1 \
    --lr-schedule cosine ${tuning:---epochs 2} --train-with-valid-preprocessing --base-learning-rate -11 \
    --variable-filter Top --logs-path "$runs/tuned" $quick
$python validation.py --config B0-G16-GN-Native_mini --restore-path "$runs/tuned" --logs-path "$runs/tuned-validation"
$python poprun.py --num-instances 2 --num-replicas 2 --ipus-per-replica 2 --only-output-from-instance 0 \
    $python train.py --config B0-G16-GN-Half_mini --logs-path "$runs/half-two" $quick ${short:---stop-after 20}
$python poprun.py --num-instances 2 --num-replicas 2 --ipus-per-replica 1 --only-output-from-instance 0 \
    $python validation.py --config B0-G16-GN-Half_mini --restore-path "$runs/half-two" --logs-path "$runs/two-validation"
