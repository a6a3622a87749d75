"""What an editor knows of the Python API, by the type checker and the language server of Pyright."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tools import option_types

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("basedpyright")


@pytest.fixture
def script(tmp_path) -> Path:
    """Return a script's path in a folder whose editor knows the checkout."""
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    return tmp_path / "script.py"


def findings(script: Path, text: str) -> list[str]:
    """Return the errors and the revealed types that the type checker reports for a script."""
    script.write_text(text)
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, str(script)]
    found = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=300)
    return [each["message"].splitlines()[0] for each in json.loads(found.stdout)["generalDiagnostics"]]


def test_declared_options_are_written():
    assert option_types.FILE.read_text() == option_types.text(), "call python -m tools.option_types"


def test_misspelt_names_are_found(script):
    text = (
        "import cnn_harness\n"
        "cnn_harness.train(micro_batch_sise=16)\n"
        "cnn_harness.train(epochs='ten')\n"
        "cnn_harness.finetune('photos', epox=3)\n"
        "cnn_harness.load('run').evaluate(tta=True, batsh=3)\n"
        "cnn_harness.plan(serch=True)\n"
        "cnn_harness.load('run').predictions('a.jpg')\n"
        "cnn_harness.trian()\n"
    )
    found = findings(script, text)
    names = ("micro_batch_sise", "ten", "epox", "batsh", "serch", "predictions", "trian")
    assert len(found) == len(names), found
    for name, message in zip(names, found):
        assert f'"{name}"' in message or f"'{name}'" in message


def test_results_have_types(script):
    text = (
        "import cnn_harness\n"
        "network = cnn_harness.train('quickstart', micro_batch_size=16, pipeline_splits=['b1/0'], batch_norm=True)\n"
        "reveal_type(network)\n"
        "reveal_type(network.class_names)\n"
        "reveal_type(cnn_harness.plan('quickstart', system='POD4', search=True))\n"
        "try:\n    cnn_harness.load('run')\nexcept cnn_harness.WrongInput as error:\n    print(error)\n"
    )
    found = findings(script, text)
    kinds = ["TrainedNetwork", "tuple[str, ...]", "dict[str, Any]"]
    assert [message.rpartition(" is ")[2].strip('"') for message in found] == kinds


class Server:
    """A language server, with which an editor talks in JSON."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._number = process, 0

    def tell(self, method: str, **params: Any) -> None:
        """Send a message without an answer."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, **params: Any) -> Any:
        """Send a question; return the result."""
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while (answer := self._receive()).get("id") != self._number or "method" in answer:
            if "id" in answer and "method" in answer:  # a question of the server, such as for the settings
                wanted = answer["params"].get("items") if isinstance(answer["params"], dict) else None
                self._send({"jsonrpc": "2.0", "id": answer["id"], "result": wanted and [None] * len(wanted)})
        return answer["result"]

    def _send(self, message: dict[str, Any]) -> None:
        content = json.dumps(message).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(self._process.stdout.read(length))


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    command = [str(Path(sys.executable).with_name("basedpyright-langserver")), "--stdio"]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        server = Server(process)
        place = {"uri": folder.as_uri(), "name": "folder"}
        server.ask("initialize", processId=None, rootUri=place["uri"], workspaceFolders=[place], capabilities={})
        server.tell("initialized")
        yield server
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("written", "offered"),
    [
        ("cnn_harness.fine", {"finetune"}),
        ("cnn_harness.train(micro_ba", {"micro_batch_size="}),
        ("cnn_harness.train(optimiser='LA", {"LARS", "LAMB"}),
    ],
)
def test_names_are_completed(written, offered, script):
    with server(script.parent) as editor:
        text = f"import cnn_harness\n{written}"
        document = {"uri": script.as_uri(), "languageId": "python", "version": 1, "text": text}
        editor.tell("textDocument/didOpen", textDocument=document)
        position = {"line": 1, "character": len(written)}
        found = editor.ask("textDocument/completion", textDocument={"uri": script.as_uri()}, position=position)
        labels = {item["label"].strip("\"'") for item in found["items"]}
        assert offered <= labels
