"""Compare the results of small runs of every kind before and after a change.

python test/fingerprints.py record FOLDER     # before: run, and write fingerprints.json
python test/fingerprints.py compare FOLDER    # after: run again, resume the recorded runs; exit code 1 if any differs

A fingerprint has a digest of every checkpoint's tensors, the rows of the tables without times, the file names, and the
printed lines without numbers. The bits are specific to the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "test/helpers")]

import tensorflow.compat.v1 as tf  # noqa: E402
from commands import timeless  # noqa: E402
from instances import by_tf_config, succeeded  # noqa: E402

_COMMON = "--seed 3 --abs-learning-rate 0.02 --warmup-epochs 0 --iterations 4 --log-freq 1 --batches-per-step 2"
_CLOTHES = "--dataset fashion-mnist --no-validation"
_TINY = "--model efficientnet --depth-coefficient 0.2 --width-coefficient 0.25"
RUNS = {
    "resnet-batch-fp32": f"{_CLOTHES} --model-size 8 --precision 32.32 --optimiser momentum --lr-schedule cosine --batch-size 8",
    "resnet-group-half": f"{_CLOTHES} --model-size 8 --group-norm --precision 16.16 --stochastic-rounding all --batch-size 4 "
    "--gradient-accumulation-count 3 --weight-decay 1e-3",
    "resnet-pipeline": f"{_CLOTHES} --model-size 8 --BN-span 2 --replicas 2 --shards 2 --pipeline --pipeline-splits auto "
    "--pipeline-schedule Grouped --gradient-accumulation-count 4 --batch-size 2 --fp32-accumulators",
    "resnext": f"{_CLOTHES} --model resnext --model-size 11 --precision 32.32 --optimiser RMSprop --lr-schedule exponential "
    "--lr-decay-rate 0.9 --lr-drops 3 --batch-size 4",
    "squeezenet": f"{_CLOTHES} --model squeezenet --image-size 64 --precision 16.32 --lr-schedule polynomial_decay_lr --batch-size 4",
    "proxy-norm": f"{_CLOTHES} {_TINY} --groups 1 --proxy-norm --optimiser LAMB --batch-size 2 --gradient-accumulation-count 2 "
    "--dropout-rate 0.2 --mixup-alpha 0.3",
    "efficientnet-lars": f"{_CLOTHES} {_TINY} --batch-norm --group-dim 16 --expand-ratio 4 --precision 16.32 --optimiser LARS "
    "--enable-recomputation --batch-size 4 --gradient-accumulation-count 2 --fold 2 --cutmix-lambda 0.6",
    "imagenet": "--dataset imagenet --generated-data --model-size 10 --image-size 32 --fused-preprocessing --eight-bit-io "
    "--label-smoothing 0.1 --offload-fp32-weight-copy --precision 16.16 --batch-size 2 --no-validation",
    "averaged": "--dataset fashion-mnist --model-size 8 --precision 32.32 --batch-size 2500 --weight-avg-N 1 --weight-avg-exp 0.5 "
    "--valid-batch-size 500",
}  # fmt: skip
RESUMED = ("resnet-group-half", "resnet-pipeline", "proxy-norm")
_NUMBER = re.compile(
    r"(taken from|loaded from|built in) .*|fingerprint.*|native-[\w-]+|\S*python \S*|[ -]*\d[\d.,]*(e[-+]?\d+)?"
)
TOGETHER = f"{_CLOTHES} --model-size 8 --batch-size 4 --ckpt-all-instances"


def command(script: str, *words: object) -> str:
    """Return the output of a command of this tree; raise an error if it fails."""
    done = subprocess.run([sys.executable, ROOT / f"{script}.py", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{script}.py {' '.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def described(folder: Path, out: str) -> dict[str, Any]:
    """Return the results of a run in comparable form."""
    return {
        "weights": {file.stem: _digest(file.with_suffix("")) for file in sorted(folder.glob("*.index"))},
        "rows": {file.name: timeless(file) for file in sorted(folder.glob("*.csv"))},
        "files": sorted(re.sub(r"\d{9,}.*", "#", file.name) for file in folder.iterdir()),  # event files have a time
        "lines": sorted({_NUMBER.sub("#", line.replace(str(folder.parent), "")) for line in out.splitlines()}),
    }


def _digest(prefix: Path) -> str:
    reader, total = tf.train.NewCheckpointReader(str(prefix)), hashlib.sha256()
    for name in sorted(reader.get_variable_to_shape_map()):
        value = reader.get_tensor(name)
        total.update(f"{name} {value.dtype} {value.shape} ".encode() + value.tobytes())
    return total.hexdigest()[:16]


def ended(place: Path) -> dict[str, dict[str, Any]]:
    """Run everything, each in its own folder in `place`, and return the results."""
    found = {}
    for name, words in RUNS.items():
        out = command("train", *words.split(), *_COMMON.split(), "--logs-path", place / name)
        found[name] = described(place / name, out)
    for name in RESUMED:
        folder = place / f"{name}-resumed"
        command("train", *RUNS[name].split(), *_COMMON.split(), "--stop-after", 2, "--logs-path", folder)
        found[folder.name] = described(folder, command("restore", "--restore-path", folder))
    out = command("validation", "--restore-path", place / "averaged", "--logs-path", place / "validated")
    found["validated"] = described(place / "validated", out)
    each = [[*TOGETHER.split(), *_COMMON.split(), "--logs-path", place / "together"]] * 2
    found["together"] = described(place / "together", succeeded(by_tf_config("train.py", each))[0].out)
    return found


def restored(place: Path, work: Path) -> dict[str, dict[str, Any]]:
    """Resume copies of the runs in `place` for two more updates, in `work`; return the results."""
    found = {}
    for name in RUNS:
        folder = Path(shutil.copytree(place / name, work / name))
        found[f"{name} and two more updates"] = described(
            folder, command("restore", "--restore-path", folder, "--iterations", 6)
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path={asked.folder.resolve() / 'programs'}"
    record = asked.folder.resolve() / "fingerprints.json"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        runs = asked.folder.resolve() / "runs"
        found = ended(runs if asked.what == "record" else work / "runs") | restored(runs, work)
    if asked.what == "record":
        record.write_text(json.dumps(found, indent=1, sort_keys=True))
        print(f"{len(found)} runs recorded in {record}")
        return 0
    before = json.loads(record.read_text())
    differences = [
        f"{name}: other {what}"
        for name in before.keys() | found.keys()
        for what in ("weights", "rows", "files")
        if before.get(name, {}).get(what) != json.loads(json.dumps(found.get(name, {}))).get(what)
    ]
    for name in before.keys() & found.keys():
        differences += [f"{name}: {line}" for line in set(before[name]["lines"]) ^ set(found[name]["lines"])]
    print("\n".join(sorted(differences)) or f"{len(found)} runs ended as recorded")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
