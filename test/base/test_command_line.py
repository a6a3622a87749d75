"""Wrong words on a command line: one line, with the nearest names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from base.errors import OptionError
from base.process import command_line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --htlm x", "unknown option --htlm; did you mean --html or --help?"),
        ("run --htlm=x", "unknown option --htlm; did you mean --html or --help?"),
        ("run --wholly-other", "unknown option --wholly-other"),
        ("run another", "another is one word too many"),
        ("", "the following arguments are required: RUN"),
        ("run --html", "argument --html: expected one argument"),
    ],
)
def test_wrong_words_are_named(words, said):
    parser = command_line.Parser(prog="report.py", allow_abbrev=False)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--html")
    with pytest.raises(command_line.UsageError) as error:
        parser.parse_args(words.split())
    assert str(error.value) == said
    assert parser.parse_args(["run", "--html", "x"]).html == "x"


def test_an_empty_word_is_no_path():
    parser = command_line.Parser()
    parser.add_argument("runs", metavar="RUN", nargs="+")
    parser.add_argument("--html")
    parser.add_argument("--title", default="")
    for words, named in ((["a", ""], "RUN"), (["a", "--html="], "--html")):
        with pytest.raises(command_line.UsageError, match=f"^{named} needs a value: the given one is empty$"):
            parser.parse_args(words)
    assert parser.parse_args(["a", "--title", ""]).html is None


def test_a_loop_of_links_is_wrong_input(tmp_path, capsys):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    code = command_line.run("any", lambda _: loop.resolve() == loop.stat(), [], ())  # Python 3.13 resolves it
    said = f"{loop}: Too many levels of symbolic links: the link leads to itself; give another path"
    assert (code, capsys.readouterr().err) == (2, f"any: error: {said}\n")


def test_a_path_that_cannot_be_one_is_named_with_its_option(capsys):
    for words in (["-q", "--run", "x" * 300, "--other", "x"], ["--other=x", f"--run={'x' * 300}"]):
        assert command_line.run("any", lambda _: bool(os.stat("./" + "x" * 300)), words, ()) == 2
        assert capsys.readouterr().err.startswith(
            f"any: error: --run ./{'x' * 98}... (302 characters): File name too long: "
        )
    assert command_line.run("any", lambda _: bool(os.stat("x" * 300)), ["--iterations", "x"], ()) == 2
    assert capsys.readouterr().err.startswith("any: error: xxx")


def test_a_given_name_with_control_characters_breaks_no_line(capsys):
    def main(words: list[str]) -> int:
        raise OptionError(f"{words[1]}/file: not there", "There are: oth\x1b[31mers\nand more")

    assert command_line.run("any", main, ["--run", "new\nline", "\n"], (OptionError,)) == 2
    said = "any: error: new\\nline/file: not there\nThere are: oth\\x1b[31mers\nand more\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("error", [OptionError, ValueError])
def test_text_of_a_file_reaches_no_terminal_as_it_is(error, capsys):
    """Words of the command line alone were written with escapes."""

    def main(_: list[str]) -> int:
        raise error("run.yml: a\nb\x1b[31mc\x07 is no name")

    assert command_line.run("any", main, [], (error,)) == 2
    assert capsys.readouterr().err == "any: error: run.yml: a\\nb\\x1b[31mc\\x07 is no name\n"


def test_a_working_directory_that_is_gone_is_told_of(tmp_path, capsys, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert command_line.run("any", lambda _: bool(Path("run").resolve()), [], ()) == 1
    said = "No such file or directory: the working directory has been removed; change to another one (cd)"
    assert capsys.readouterr().err == f"any: error: {said}\n"

    def main(_: object) -> int:
        raise OptionError("cannot make logs: No such file or directory", "listed")

    assert command_line.run("any", main, [], (OptionError,)) == 2
    said = "cannot make logs: No such file or directory; the working directory has been removed; change to another one (cd)"
    assert capsys.readouterr().err == f"any: error: {said}\nlisted\n"
