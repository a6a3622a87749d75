#!/bin/sh
# An installation: the wheel in an environment of its own, which has the packages of this one's besides. All commands are
# called from a folder whose files have the names of the project's.
set -eu
case ${PYTHON:-.venv/bin/python} in
    */*) python=$(pwd)/${PYTHON:-.venv/bin/python} && [ -x "$python" ] || python=$PYTHON ;;
    *) python=$PYTHON ;;
esac
mkdir -p "${RUNS:-logs/walks}"
runs=$(cd "${RUNS:-logs/walks}" && pwd)
place=$(mktemp -d)
trap 'chmod -R u+w "$place"; rm -rf "$place"' EXIT
export HARNESS_KERNELS=0

mkdir "$place/source" "$place/here"
git ls-files -z -co --exclude-standard | xargs -0 cp --parents -t "$place/source"
cd "$place/source"
"$python" -c 'import setuptools.build_meta as b; b.build_wheel("..")' >/dev/null
"$python" -m venv --without-pip "$place/env"
packages=$("$place/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/others.pth"
"$python" -m pip --python "$place/env/bin/python" install --quiet --no-deps --no-index "$place"/*.whl
rm -rf "$packages/__pycache__"
[ "$(cd "$packages" && echo *)" = "$(cd "$packages" && echo cnn_harness cnn_harness-*.dist-info others.pth popdist)" ]
chmod -R a-w "$packages"
export PATH="$place/env/bin:$PATH"

cd "$place/here"
mkdir Models
for name in log train base harness tools validation Models/resnet; do
    echo 'raise SystemExit("a file of the working directory was imported")' >"$name.py"
done
short="--iterations 2 --no-validation --micro-batch-size 8"
cnn --version
cnn train --config quickstart $short --logs-path "$runs/run" | tee said
eval "$(sed -n 's/^Validate again: *//p' said) --logs-path $runs/validation"
eval "$(sed -n 's/^Train further: *//p' said)"
python -m cnn_harness validate --restore-path "$runs/run/ckpt-2" --logs-path "$runs/again"
poprun --num-instances 2 --num-replicas 2 cnn train --config quickstart $short --logs-path "$runs/two"
python -c 'import numpy, PIL.Image; PIL.Image.fromarray(numpy.full((300, 200, 3), 99, "u1")).save("photo.jpg")'
cnn predict efficientnet-lite0 photo.jpg --output "$runs/predicted.csv"
cnn report "$runs/run" --html "$runs/report.html"
cnn compare "$runs/run" "$runs/two" --output "$runs/compared.svg"
mkdir -p photos/grey photos/white
python -c 'import numpy, PIL.Image as i
for k in range(12): i.fromarray(numpy.full((40, 50, 3), 99 + k + k % 2 * 120, "u1")).save("photos/%s/%d.png" % (("grey", "white")[k % 2], k))'
cnn finetune photos --dry-run --logs-path "$runs/tuned"
printf 'two:\n  config: quickstart\n  iterations: 2\n  grid: {momentum: [0.8, 0.9]}\n' >sweep.yml
cnn sweep sweep.yml two --dry-run --logs-path "$runs/sweep"
cnn export "$runs/run" --to frozen --output "$runs/exported"
cnn runs "$runs"
gc-info -l >/dev/null
(cd "$place" && python -c 'from cnn_harness import ipu_utils; print(ipu_utils.compile_training.__name__)')
[ "$(cd "$packages" && find . -newer "$place/here/said" -type f)" = "" ]
