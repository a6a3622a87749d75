"""Write cnn_harness/option_types.pyi: the options of the Python API as types, from the declarations of the options.

    python -m tools.option_types

Editors complete the options and mark misspelt ones. `test/test_editor.py` fails if the file is out of date.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cnn_harness.base import plugins
from cnn_harness.harness.options.catalogue import Option, every_option

FILE = plugins.ROOT / "cnn_harness/option_types.pyi"
HEAD = '''"""The options of the Python API as types, for editors. Written by tools/option_types.py."""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict

Text = str | PathLike[str] | float
'''
COMMON, WITHOUT = "CommonOptions", {"help", "version"}
CLASSES = (  # class, docstring, script, options that functions of the API have as parameters of their own
    ("TrainOptions", "The options of `train` and `finetune`.", "train", {"config"}),
    ("ValidateOptions", "The options of `TrainedNetwork.evaluate`.", "validation", {"restore_path", "logs"}),
)
PLAN = '''

class PlanOptions(TrainOptions, total=False):
    """The options of `plan`."""

    inference: bool
    """predict a validation on one IPU instead of a training"""
    processes: int
    """number of host processes that send images"""
    search: bool
    """search for the fastest plan that fits in memory"""
'''


def text() -> str:
    """Return the content of the file."""
    fields = [_fields(script, without | WITHOUT) for _, _, script, without in CLASSES]
    common = {name: lines for name, lines in fields[0].items() if all(each.get(name) == lines for each in fields)}
    classes = [_class(COMMON, "TypedDict, total=False", "The options that the functions have in common.", common)]
    for (name, about, _, _), each in zip(CLASSES, fields):
        own = {field: lines for field, lines in each.items() if field not in common}
        classes.append(_class(name, f"{COMMON}, total=False", about, own))
    return HEAD + "".join(classes) + PLAN


def _class(name: str, base: str, about: str, fields: Mapping[str, str]) -> str:
    return f'\n\nclass {name}({base}):\n    """{about}"""\n\n' + "".join(fields.values())


def _fields(script: str, without: set[str]) -> dict[str, str]:
    """Return the lines of each spelling of an option."""
    options: dict[str, list[Option]] = {}
    for option in every_option(script):  # models and schedules may share names
        for spelling in (option.name, *option.meta["aliases"], *option.meta["rewrites"]):
            if spelling.isidentifier() and spelling not in without:
                options.setdefault(spelling, []).append(option)
    lines = {}
    for spelling, found in sorted(options.items()):
        kinds = dict.fromkeys(kind for option in found for kind in _kinds(option))
        lines[spelling] = f'    {spelling}: {" | ".join((*kinds, "None"))}\n    """{found[0].meta["help"]}"""\n'
    return lines


def _kinds(option: Option) -> Iterator[str]:
    """Yield the types of values that an option accepts."""
    one = "Text" if option.base is str else option.base.__name__
    if option.meta["choices"]:
        one = f"Literal[{', '.join(repr(option.base(choice)) for choice in option.meta['choices'])}]"
    yield one
    if option.several:
        yield f"Sequence[{one}]"
    if option.meta["bare"]:
        yield "bool"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
