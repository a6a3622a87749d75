"""Write the README of an export: its files, the preparation of a photo, and lines of Kotlin and Swift for phones."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from string import Template
from typing import Any

FILE = "README.md"
_NAMED = re.compile(r"\$\{?(\w+)")  # a line with a name that has no value is left out

_START = """\
# $network: $classes classes

Weights: $checkpoint. The input `image` is uint8 [batch, $side, $side, 3] in RGB. The output `probabilities` is float32
[batch, $classes]. The first line of labels.txt is the name of the first output.

$preparation
$normalisation
preprocessing.json contains the same numbers.

## Python

    python predict.py PHOTO.jpg
"""

_WEB = """
## Web browser

index.html classifies photos in the browser. Run these two lines in this folder, then open http://localhost:8000:

    npm pack onnxruntime-web && tar xzf onnxruntime-web-*.tgz --strip-components=2 \\
        package/dist/ort.wasm.bundle.min.mjs package/dist/ort-wasm-simd-threaded.wasm
    python3 -m http.server
"""

_PHONE = """
## Phones

$model contains labels and metadata for MediaPipe. Resize and crop the photo yourself, because MediaPipe would stretch
the whole photo to a square.

Android, with `implementation("com.google.mediapipe:tasks-vision:latest.release")` and the model in `app/src/main/assets`:

```kotlin
fun prepared(photo: Bitmap): Bitmap { // an upright photo
    var $halved = photo // halved while it is large, because each of $square x $square pixels is an average
    while (minOf($halved.width, $halved.height) >= 2 * $square)
        $halved = Bitmap.createScaledBitmap($halved, $halved.width / 2, $halved.height / 2, true)
    val scale = ${shorter}f / minOf($photo.width, $photo.height)
    val (width, height) = $photo.width * scale to $photo.height * scale
    val image = Bitmap.createBitmap($side, $side, Bitmap.Config.ARGB_8888)
    val canvas = Canvas(image)
    canvas.drawColor(Color.BLACK)
    canvas.clipRect($frame, $frame, $end, $end)
    val place = RectF(($side - width) / 2, ($side - height) / 2, ($side + width) / 2, ($side + height) / 2)
    canvas.drawBitmap($photo, null, place, Paint(Paint.FILTER_BITMAP_FLAG))
    return image
}

val classifier = ImageClassifier.createFromFile(context, "$model")
val result = classifier.classify(BitmapImageBuilder(prepared(photo)).build()).classificationResult()
for (each in result.classifications()[0].categories().take(5)) println(each.categoryName() + " " + each.score())
```

iOS, with `pod 'MediaPipeTasksVision'` and the model in the app's bundle:

```swift
func prepared(_ photo: UIImage) -> UIImage {
    let scale = $shorter / min(photo.size.width, photo.size.height)
    let (width, height) = (photo.size.width * scale, photo.size.height * scale)
    let format = UIGraphicsImageRendererFormat()
    format.scale = 1
    format.opaque = true
    return UIGraphicsImageRenderer(size: CGSize(width: $side, height: $side), format: format).image { context in
        UIColor.black.setFill()
        context.fill(CGRect(x: 0, y: 0, width: $side, height: $side))
        context.cgContext.interpolationQuality = $quality
        context.cgContext.clip(to: CGRect(x: $frame, y: $frame, width: $square, height: $square))
        photo.draw(in: CGRect(x: ($side - width) / 2, y: ($side - height) / 2, width: width, height: height))
    }
}

let classifier = try ImageClassifier(modelPath: Bundle.main.path(forResource: "$stem", ofType: "tflite")!)
let result = try classifier.classify(image: MPImage(uiImage: prepared(photo)))
for each in result.classificationResult.classifications[0].categories.prefix(5) {
    print(each.categoryName ?? "", each.score)
}
```
"""


def text(about: Mapping[str, Any], files: Collection[str]) -> str:
    """Return the README. `about` is the content of preprocessing.json, `files` are the exported files."""
    how, side = about["prepare"], about["input"]["shape"][1]
    model = next((name for name in ("model.tflite", "model_int8.tflite") if name in files), "")
    values = {
        "network": about["network"], "checkpoint": about["checkpoint"], "classes": about["output"]["shape"][1],
        "preparation": _preparation(how, side), "normalisation": _normalisation(about["done_inside"]["normalisation"]),
        "model": model, "stem": model.removesuffix(".tflite"), "side": side,
    }  # fmt: skip
    if "square" in how:
        square, frame = how["square"], how["frame_of_zeros"]
        values |= {"square": square, "shorter": square, "halved": "halved", "photo": "halved", "quality": ".high"}
        values |= {"frame": frame, "end": side - frame} if frame else {}
    else:
        values |= {"shorter": how["shorter_side"], "photo": "photo", "quality": ".low"}
    onnx = any(name.endswith(".onnx") for name in files)
    lines = f"{_START}{_WEB * onnx}{_PHONE * bool(model)}".splitlines(keepends=True)
    return "".join(Template(line).substitute(values) for line in lines if values.keys() >= {*_NAMED.findall(line)})


def _preparation(how: Mapping[str, Any], side: int) -> str:
    if "square" in how:
        square, frame = how["square"], how["frame_of_zeros"]
        framed = f", and add a frame of {frame} zeros on each side" if frame else ""
        return f"To prepare a photo, average its largest central square to {square} x {square} pixels{framed}."
    shorter = how["shorter_side"]
    return (
        f"To prepare a photo, resize it (bilinear) until its shorter side has {shorter} pixels, then cut out the central "
        f"{side} x {side} pixels."
    )


def _normalisation(about: Mapping[str, Any]) -> str:
    if about["kind"] != "constant":
        return "The model itself normalises each image by the image's own mean and standard deviation."
    mean, deviation = (", ".join(f"{value:g}" for value in about[name]) for name in ("mean", "deviation"))
    return (
        f"The model itself computes (pixel - mean) / standard deviation. For red, green and blue, the means are {mean} "
        f"and the standard deviations {deviation}."
    )
