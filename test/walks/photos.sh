#!/bin/sh
# docs/own-photos.md: fine-tune on a folder of images, export, and predict after the folder was moved. SHORT=1: small images.
set -eu
python=${PYTHON:-.venv/bin/python}
runs=${RUNS:-logs/walks}
short=${SHORT:+--image-size 64 --batch-size 8 --epochs 2}

$python test/helpers/clothing.py "$runs/photos"
$python -m cnn_harness finetune "$runs/photos" --logs-path "$runs/own" $short
$python -m cnn_harness export "$runs/own" --to savedmodel,tflite,frozen --output "$runs/exported"
$python -m cnn_harness runs "$runs"
mv "$runs/photos" "$runs/moved"
$python validation.py --restore-path "$runs/own" --predict "$runs/moved/Bag/001.png"
