"""Wrong words on a command line give one line with the nearest names."""

from __future__ import annotations

import pytest

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --htlm x", "unknown option --htlm; did you mean --html or --help?"),
        ("run --htlm=x", "unknown option --htlm; did you mean --html or --help?"),
        ("run --wholly-other", "unknown option --wholly-other"),
        ("run another", "unexpected argument another"),
        ("", "the following arguments are required: RUN"),
        ("run --html", "argument --html: expected one argument"),
    ],
)
def test_wrong_words_are_named(words, said):
    parser = command_line.Parser(prog="cnn report", allow_abbrev=False)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--html")
    with pytest.raises(command_line.UsageError) as error:
        parser.parse_args(words.split())
    assert str(error.value) == said
    assert parser.parse_args(["run", "--html", "x"]).html == "x"


def test_control_characters_in_names_break_no_line(capsys):
    def main(words: list[str]) -> int:
        raise OptionError(f"{words[1]}/file: not there", "There are: oth\x1b[31mers\nand more")

    assert command_line.run("any", main, ["--run", "new\nline", "\n"], (OptionError,)) == 2
    said = "any: error: new\\nline/file: not there\nThere are: oth\\x1b[31mers\nand more\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("error", [OptionError, ValueError])
def test_file_content_is_escaped_on_terminal(error, capsys):
    """Only words of the command line used to be escaped."""

    def main(_: list[str]) -> int:
        raise error("run.yml: a\nb\x1b[31mc\x07 is no name")

    assert command_line.run("any", main, [], (error,)) == 2
    assert capsys.readouterr().err == "any: error: run.yml: a\\nb\\x1b[31mc\\x07 is no name\n"
