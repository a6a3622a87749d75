"""Check the language of docs, docstrings, comments and messages: sentences of at most 30 words, no words from AVOIDED.

python tools/wording.py           check docs, docstrings, comments and messages; exit code 1 for findings
python tools/wording.py --list    print every message of the program with its file and line
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "docs",
    "cnn_harness",
    "Models",
    "LR_Schedules",
    "Optimisers",
    "Datasets",
    "experiments",
    "tools",
    "bench",
    "test",
)
LONGEST = 30  # maximum number of words in a sentence
AVOIDED = {  # a pattern, and the words that we write instead
    r"(tell|tells|told|telling) of|(is|are|was|were) told": "report, warn, log",
    r"(go|goes|going|gone|went) on": "continue, resume",
    r"beside|besides": "with, next to, in addition to",
    r"anew": "again, from the start",
    r"lies?|lying": "is, is stored",
    r"(come|comes|came|coming) along": "is included",
    r"(hold|holds|held|holding) against": "compare with",
    r"in the company of": "with",
    r"(has|have|had) no use for": "ignore",
    r"(make|makes|made|making) use of": "use",
    r"what it is of": "what it belongs to",
    r"but for": "except",
    r"pictures?": "image, photo, chart",
    r"photographs?": "photo",
}
_AVOIDED = tuple((re.compile(rf"\b({pattern})\b", re.IGNORECASE), instead) for pattern, instead in AVOIDED.items())


class Passage(NamedTuple):
    """A paragraph, docstring, comment or message."""

    file: Path
    line: int
    kind: str  # "docs", "docstring", "comment" or "message"
    text: str


def passages(path: Path) -> Iterable[Passage]:
    """Return the passages of a file in Markdown, Python or C++, except strings in tests, which quote messages."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return _markdown(path, text)
    if path.suffix == ".py":
        return (
            found for found in _python(path, text) if found.kind != "message" or ROOT / "test" not in path.resolve().parents
        )
    lines = [(number, line.partition("//")[2]) for number, line in enumerate(text.splitlines(), 1)]
    return _blocks(path, [(number, comment) for number, comment in lines if comment])


def _markdown(path: Path, text: str) -> Iterator[Passage]:
    """Yield paragraphs, list items and table cells. Skip code blocks."""
    text = re.sub(r"^```.*?^```|^<!--.*?-->|^ {4}.*?$", lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)
    start, block = 1, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if block and re.match(r"\s*($|[*#|-]|\d+\.)", line):
            for cell in block.split("|"):
                yield Passage(path, start, "docs", cell)
            block = ""
        if line.strip():
            start = start if block else number
            block += line + "\n"


def _python(path: Path, text: str) -> Iterator[Passage]:
    """Yield docstrings, comments, and strings of at least three words."""
    tree = ast.parse(text)
    docstrings, parts = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (found := ast.get_docstring(node)):
            docstrings.add(node.body[0].value)
            yield from (Passage(path, node.body[0].lineno, "docstring", part) for part in found.split("\n\n"))
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings | parts:
            message = node.value
        elif isinstance(node, ast.JoinedStr):
            message = "".join(value.value if isinstance(value, ast.Constant) else "{}" for value in node.values)
        else:
            continue
        if len(message.split()) > 2:
            yield Passage(path, node.lineno, "message", message)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from _blocks(path, [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT])


def _blocks(path: Path, comments: list[tuple[int, str]]) -> Iterator[Passage]:
    """Join the comments of consecutive lines into one passage."""
    start, block = 0, []
    for number, comment in [*comments, (-1, "")]:
        if block and number != start + len(block):
            yield Passage(path, start, "comment", "\n".join(block))
            block = []
        start = start if block else number
        block.append(comment.lstrip("#/ "))


def faults(passage: Passage) -> Iterator[str]:
    """Yield the faults of a passage. Ignore code spans and link targets."""
    text = re.sub(r"``?[^`]+``?", "`code`", passage.text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for sentence in re.split(r"(?<=[.?!:])[\"')]*\s", text):
        words = re.findall(r"[A-Za-z][\w'-]*", sentence)
        if len(words) > LONGEST:
            yield f"{len(words)} words in one sentence, {LONGEST} are enough: {' '.join(words[:8])} ..."
    for pattern, instead in _AVOIDED:
        for found in pattern.finditer(text):
            yield f'"{found[0]}": write {instead}'


def _files(names: list[str]) -> list[Path]:
    """Return the files to check. Skip this file, because it contains the avoided words."""
    roots = [Path(name) for name in names] or [
        *ROOT.glob("*.md"),
        *ROOT.glob("*.py"),
        *(ROOT / name for name in FOLDERS),
    ]
    found = (file for root in roots for file in ([root] if root.is_file() else sorted(root.rglob("*"))))
    return [
        file for file in found if file.suffix in (".md", ".py", ".cc", ".h") and file.resolve() != Path(__file__).resolve()
    ]


def main() -> int:
    """Check or list; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files or folders to check (default: the whole project)")
    parser.add_argument("--list", action="store_true", help="print every message of the program instead of checking")
    given = parser.parse_args()
    count = 0
    for path in _files(given.paths):
        shown = path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path
        for passage in passages(path):
            if given.list:
                if passage.kind == "message":
                    print(ascii(f"{shown}:{passage.line}: {' '.join(passage.text.split())}")[1:-1])
                continue
            for fault in faults(passage):
                count += 1
                print(f"{shown}:{passage.line}: {passage.kind}: {fault}")
    if not given.list:
        print(f"{count} findings" if count else "All sentences are short, all words are plain")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
