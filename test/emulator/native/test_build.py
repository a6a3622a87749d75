"""Build and find the kernel library, with a stand-in compiler that writes its version into the output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cnn_harness.base.plugins import ROOT
from cnn_harness.emulator.native import build, library

COMPILER = """import sys
if "--version" in sys.argv:
    print("compiler {version}")
else:
    open(sys.argv[sys.argv.index("-o") + 1], "w").write("{version}")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Return the empty folder of built libraries, with a compiler installed."""
    place = tmp_path / "built"
    monkeypatch.setattr(library, "built", lambda: place)
    monkeypatch.delenv(library.SWITCH, raising=False)
    use_compiler(tmp_path, monkeypatch, "1")
    library.path.cache_clear()
    yield place
    library.path.cache_clear()


def use_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    script = tmp_path / "compiler.py"
    script.write_text(COMPILER.format(version=version))
    monkeypatch.setenv("CXX", f"{sys.executable} {script}")


def test_truncated_library_is_rebuilt(folder, capsys):
    assert build.main([]) == 0 and library.identity() == library.newest().stem
    built = library.newest()
    whole = built.read_bytes()
    for rest in (0, 10, len(whole) - 1):
        built.write_bytes(whole[:rest])
        assert library.newest() is None
        assert build.main([]) == 0 and built.read_bytes() == whole
    assert build.main([]) == 0 and "built: " in capsys.readouterr().out.splitlines()[-1]


def test_another_compiler_builds_another_file(folder, tmp_path, monkeypatch):
    build.main([])
    first = library.newest()
    use_compiler(tmp_path, monkeypatch, "2")
    build.main([])
    assert first.exists() and library.newest() != first and library.newest().name.startswith(library.name())
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(library, "COMPILERS", ())
    assert build.main([]) == 0 and library.newest() != first  # an existing library works without a compiler


def test_missing_compiler_is_reported(folder, monkeypatch, capsys):
    monkeypatch.setattr(library, "COMPILERS", ("no-such-compiler",))
    monkeypatch.delenv("CXX")
    assert build.main([]) == 0 and not library.identity()
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'import sys; sys.exit(\"error: no\")'")
    assert build.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("; ")[0] for line in lines] == [
        "The kernels are not built: there is no C++ compiler (no-such-compiler)", "The kernels are not built: error: no"
    ]  # fmt: skip
    assert not list(folder.glob("*.so"))


def test_unloadable_library_is_named(tmp_path):
    """In a separate process, because a loaded library stays loaded."""
    code = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1])\n"
        "from cnn_harness.emulator.native import library\n"
        "library.built = lambda: pathlib.Path(sys.argv[2])\n"
        "bad = library.built() / f'{library.name()}-0.so'; bad.write_bytes(library.sealed(b'no library'))\n"
        "try:\n    library.load()\nexcept OSError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ROOT), str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/native-") and "make kernels" in done.stdout
