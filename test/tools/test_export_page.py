"""The web page of an export classifies photos like predict.py. Its README has the same numbers as preprocessing.json."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
from PIL import Image

from cnn_harness.tools.exporting import export_folder, predict, readme

PAGE = export_folder.PAGE.read_text(encoding="utf-8")
RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
PHOTO = {"shorter_side": 54, "method": "bilinear", "crop": "central"}
SMALL = {"square": 28, "frame_of_zeros": 2, "method": "area"}


def npm_package(name: str) -> Path | None:
    """Return the folder of an npm package in NODE_PATH or among npm's global packages; None if there is none."""
    folders = [*filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep))]
    if shutil.which("npm"):
        folders.append(subprocess.run(["npm", "root", "-g"], capture_output=True, text=True).stdout.strip())
    return next((Path(folder, name) for folder in folders if Path(folder, name).is_dir()), None)


NODE, CHROMIUM = shutil.which("node"), shutil.which("chromium")
WEB = npm_package("onnxruntime-web")
needs_node = pytest.mark.skipif(NODE is None, reason="node is missing")
needs_web = pytest.mark.skipif(
    WEB is None or importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnx") is None,
    reason="needs onnx, onnxruntime, and the npm package onnxruntime-web: npm install -g onnxruntime-web",
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing")


def about(prepare: dict, side: int) -> dict:
    """Return the content of a preprocessing.json."""
    return {
        "network": "ResNet-8", "checkpoint": "ckpt-60", "input": {"shape": [None, side, side, 3]},
        "output": {"shape": [None, 3 * side]}, "prepare": prepare,
        "done_inside": {"normalisation": {"kind": "constant", "mean": [123.68, 116.78, 103.94], "deviation": [1.0] * 3}},
    }  # fmt: skip


def photo(width: int, height: int) -> Image.Image:
    """Return a photo with noise and edges."""
    draw = np.random.default_rng(width)
    coarse = Image.fromarray(draw.integers(0, 256, (5, 4, 3), np.uint8)).resize((width, height), Image.Resampling.NEAREST)
    return Image.fromarray((np.asarray(coarse) // 2 + draw.integers(0, 128, (height, width, 3))).astype(np.uint8))


def in_node(program: str, folder: Path) -> None:
    """Run a program that may call the page's `prepared`."""
    functions = re.search(r'<script id="preparation">(.*?)</script>', PAGE, re.S)
    (folder / "program.cjs").write_text(f"{functions[1]}\nconst fs = require('fs');\n{program}")
    done = subprocess.run([NODE, "program.cjs"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@needs_node
@pytest.mark.parametrize(("prepare", "side"), [(PHOTO, 48), (PHOTO | {"shorter_side": 256}, 224), (SMALL, 32)])
@pytest.mark.parametrize(("width", "height"), [(91, 37), (65, 365), (500, 333), (54, 54)])
def test_page_prepares_photos_like_program(prepare, side, width, height, tmp_path):
    image = photo(width, height)
    image.save(tmp_path / "photo.png")
    (tmp_path / "pixels").write_bytes(image.convert("RGBA").tobytes())
    described = about(prepare, side)
    call = f"prepared(fs.readFileSync('pixels'), {width}, {height}, {json.dumps(described)})"
    in_node(f"fs.writeFileSync('image', {call});", tmp_path)
    expected = predict.prepared(tmp_path / "photo.png", described)
    given = np.frombuffer((tmp_path / "image").read_bytes(), np.uint8).reshape(expected.shape).astype(int)
    # Pillow averages some tall photos over columns first, and its rounding in between then differs.
    assert np.abs(given - expected).max() <= (1 if prepare is SMALL else 0)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return an export whose model answers with the mean of each column, so that a wrong crop changes the answers."""
    from onnx import TensorProto, helper, save

    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 48, 48, 3])
    answer = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 144])
    share = helper.make_tensor("share", TensorProto.FLOAT, [], [0.05])
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels"], ["columns"], axes=[1], keepdims=0),
        helper.make_node("Flatten", ["columns"], ["wide"]),
        helper.make_node("Mul", ["wide", "share"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "columns", [image], [answer], [share]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    staging, export = tmp_path / "staging", tmp_path / "export"
    staging.mkdir()
    save(model, staging / "model.onnx")
    texts = {"labels.txt": "".join(f"column {k}\n" for k in range(144)), "preprocessing.json": json.dumps(about(PHOTO, 48))}
    export_folder.put(staging, export, texts)
    photo(91, 70).save(export / "photo.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    photo(60, 90).save(export / "turned.jpg", quality=95, subsampling=0, exif=turned)
    return export


def answers(export: Path, name: str) -> np.ndarray:
    """Return the probabilities of predict.py."""
    described = json.loads((export / "preprocessing.json").read_text())
    return predict.opened(export / "model.onnx")(predict.prepared(export / name, described)[None])[0]


@needs_node
@needs_web
def test_node_answers_like_program(folder):
    (folder / "pixels").write_bytes(Image.open(folder / "photo.png").convert("RGBA").tobytes())
    in_node(
        f"""
        (async () => {{
          const ort = await import({json.dumps(str(WEB / "dist" / RUNTIME[0]))});
          ort.env.wasm.numThreads = 1;
          ort.env.wasm.wasmBinary = fs.readFileSync({json.dumps(str(WEB / "dist" / RUNTIME[1]))});
          const about = JSON.parse(fs.readFileSync("preprocessing.json")), side = about.input.shape[1];
          const session = await ort.InferenceSession.create(fs.readFileSync("model.onnx"));
          const pixels = prepared(fs.readFileSync("pixels"), 91, 70, about);
          const image = new ort.Tensor("uint8", pixels, [1, side, side, 3]);
          fs.writeFileSync("answers", (await session.run({{image}})).probabilities.data);
        }})();""",
        folder,
    )
    given = np.frombuffer((folder / "answers").read_bytes(), np.float32)
    np.testing.assert_allclose(given, answers(folder, "photo.png"), atol=1e-5)


DROP = """<!DOCTYPE html><iframe src="index.html"></iframe><script>
onload = async () => {
  const page = document.querySelector("iframe").contentWindow, files = new page.DataTransfer();
  for (const name of NAMES) files.items.add(new File([await (await fetch(name)).blob()], name));
  page.dispatchEvent(new page.DragEvent("drop", {dataTransfer: files}));
  const found = () => page.document.querySelectorAll("figure").length === NAMES.length
    || page.document.querySelector("#message").className === "wrong";
  while (!found()) await new Promise((next) => setTimeout(next, 50));
  const words = (where, selector) => [...where.querySelectorAll(selector)].map((each) => each.textContent);
  const rows = [...page.document.querySelectorAll("figure")].map((each) => [words(each, "p"), words(each, "td")].flat());
  fetch("found", {method: "POST", body: JSON.stringify({lines: words(page.document, "body > p"), rows})});
};
</script>"""


class Server(ThreadingHTTPServer):
    """Serves a folder. `found` has what the page shows."""

    def __init__(self, folder: Path):
        self.found: Queue[dict] = Queue()
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of a folder silently, and takes text."""

    server: Server

    def do_POST(self) -> None:
        self.server.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def in_chromium(folder) -> Iterator:
    """Return a function that drops photos on the page in Chromium and returns the texts of the page."""
    server, started = Server(folder), []
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def dropped(*names: str) -> dict:
        (folder / "drop.html").write_text(DROP.replace("NAMES", json.dumps(names)))
        profile = tempfile.TemporaryDirectory()
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
        address = f"http://127.0.0.1:{server.server_port}/drop.html"
        call = [CHROMIUM, *options, f"--user-data-dir={profile.name}", "--remote-debugging-port=0", address]
        process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started.append((process, profile))
        return server.found.get(timeout=120)

    yield dropped
    for process, profile in started:
        process.terminate()
        process.wait(30)
        shutil.rmtree(profile.name, ignore_errors=True)
    server.shutdown()
    server.server_close()


@needs_chromium
@needs_web
def test_page_answers_like_program(folder, in_chromium):
    for name in RUNTIME:
        shutil.copy(WEB / "dist" / name, folder)
    found = in_chromium("photo.png", "turned.jpg")
    assert found["lines"] == ["ResNet-8, ckpt-60: 144 classes (model.onnx)", ""]
    assert [row[0] for row in found["rows"]] == ["turned.jpg", "photo.png"]  # the newest first
    for name, *cells in found["rows"]:
        expected = answers(folder, name)
        given = {int(label.removeprefix("column ")): float(share[:-2]) for share, label in zip(cells[::3], cells[2::3])}
        assert len(given) == 5 and next(iter(given)) == expected.argmax()
        assert all(abs(share - 100 * expected[k]) <= (0.06 if name == "photo.png" else 1) for k, share in given.items())


@needs_chromium
@pytest.mark.skipif(importlib.util.find_spec("onnx") is None, reason="the package onnx is missing")
def test_page_says_that_runtime_is_missing(in_chromium):
    assert "npm pack onnxruntime-web && tar xzf" in in_chromium("photo.png")["lines"][1]


def test_readme_has_preparation_of_photos():
    described = about(PHOTO | {"shorter_side": 256}, 224)
    phone = readme.text(described, ["model.tflite", "labels.txt"])
    for part in ("256 pixels", "224 x 224", "123.68, 116.78, 103.94", "256f / minOf(photo", "let scale = 256 / min(photo"):
        assert part in phone
    assert "index.html" not in phone and "$" not in phone and "clip" not in phone
    web = readme.text(described, ["model_int8.onnx"])
    assert "index.html" in web and "swift" not in web


def test_readme_has_preparation_of_small_images():
    text = readme.text(about(SMALL, 32), ["model_int8.tflite"])
    for part in ("28 x 28 pixels", "frame of 2 zeros", "28f / minOf(halved", "clipRect(2, 2, 30, 30)", '"model_int8"'):
        assert part in text
    assert "$" not in text
