"""Named blocks of a YAML file, with merge keys, line numbers, and no code execution.

Works on the composed nodes instead of loaded values: an alias is the same node twice, so nothing is copied,
every key knows its line, and several `<<` in one mapping (a later one beats an earlier one, explicit keys beat
all) are plain to follow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from base.errors import OptionError, parts
from base.fields import brief, decimal_number, whole_number
from base.plugins import did_you_mean
from base.storage import input_files
from harness.options import releases
from harness.options.releases import Choice, Span

MAX_BYTES = 1 << 20
MAX_NODES = 40_000  # keys and values: PyYAML needs some 100 microseconds for each
MAX_MERGES = 1000
MAX_MERGED = 50_000  # keys of a block, counted again wherever they are merged
MAX_NESTING = 50
MAX_LISTED = 24  # names in a message
STANDARD = "tag:yaml.org,2002:"
MERGE_TAG, MAPPING_TAG, SEQUENCE_TAG = STANDARD + "merge", STANDARD + "map", STANDARD + "seq"


class _TooMuch(yaml.MarkedYAMLError):
    """A file beyond a bound."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number, as YAML 1.2 does (1.1 asks for a dot), and keeps bounds: the scanner's time
    grows with the square of the depth."""

    nodes = 0

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        self._keep_flat(self.flow_level)
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        self._keep_flat(len(self.indents))
        return super().add_indent(column)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _TooMuch(None, None, f"more than {MAX_NODES} keys and values", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def _keep_flat(self, depth: int) -> None:
        if depth >= MAX_NESTING:
            raise _TooMuch(None, None, f"more than {MAX_NESTING} lists and mappings within each other", self.get_mark())


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _Written:
    """A number with its text as it was written: an option that is text takes 007, 1.50 and 1e3."""

    def __new__(cls, text: str) -> _Written:
        number = super().__new__(cls, cls.read(text))
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


class _Whole(_Written, int):
    read = staticmethod(whole_number)


class _Decimal(_Written, float):
    read = staticmethod(decimal_number)


_NUMBERS = {STANDARD + "int": _Whole, STANDARD + "float": _Decimal}


@dataclass(frozen=True)
class Entry:
    """A value of a block and the place of its key."""

    value: Any
    where: str


@dataclass(frozen=True)
class Block:
    """The chosen configuration."""

    name: str  # NAME, or NAME@RELEASE with an explicit release
    release: str | None  # whose values they are, where the file says
    entries: dict[str, Entry]
    notes: tuple[str, ...]  # lines that the user should read
    is_old: bool  # of a file of the first release with such files, which read keys by the letter


def read_block(path: str, name: str) -> dict[str, Entry]:
    """The block `name` of the file at `path`, merges followed."""
    return ConfigFile(path).block(name)


def choose(path: str, name: str, release: str | None = None) -> Block:
    """The configuration `name` or `name`@release of the file at `path`, its newest values if there is no release."""
    file = ConfigFile(path)
    plain, written = releases.divided(name)
    if plain not in file.names and name in file.names:  # a name that only looks like one with a release
        plain, written = name, None
    if release and written and releases.version(release) != releases.version(written):
        raise OptionError(f"--config {name} and --release {release} name two releases; give one of them")
    choice = file.choice(plain, release or written)
    entries = file.block(choice.block)
    chosen = f"{plain}{releases.SIGN}{choice.release}" if release or written else name
    notes = [note for note in (choice.note, *file.notes) if note]
    return Block(chosen, choice.release, entries, tuple(dict.fromkeys(notes)), file.is_old)


class ConfigFile:
    """A configuration file, parsed but not yet constructed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.notes: list[str] = []  # on keys that an old file gives twice, in the blocks read so far
        self._merges = self._merged = 0
        root, self._loader = _compose(path)
        self._blocks: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        self._lost: dict[str, yaml.Node] = {}  # first keys of blocks that are defined twice
        self.is_old = False
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            raise OptionError(f"{self._at(root)}: the file must be a mapping of block names to options")
        for key, node in root.value:
            label = self._key(key)
            if label in self._blocks:
                self._lost[label] = self._blocks[label][0]
            self._blocks[label] = (key, node)
        blocks = [node for _, node in self._blocks.values() if isinstance(node, yaml.MappingNode)]
        self.is_old = any(key.value in releases.MARKS for block in blocks for key, _ in block.value)

    @property
    def names(self) -> list[str]:
        """The blocks' names in the order of the file."""
        return [name for name in self._blocks if name != releases.TABLE]

    def names_with(self, *keys: str) -> list[str]:
        """The names of blocks that have one of these keys, or may have it of a block that they merge."""

        def may_have(node: yaml.Node) -> bool:
            return isinstance(node, yaml.MappingNode) and any(
                key.value in keys or key.tag == MERGE_TAG for key, _ in node.value
            )

        return [name for name in self.names if may_have(self._blocks[name][1])]

    def block(self, name: str) -> dict[str, Entry]:
        """{option: Entry} of one block."""
        self._check_known(name)
        if name in self._lost:
            first = self._at(self._lost[name])
            twice = f"{self._at(self._blocks[name][0])}: block '{brief(name)}' is defined twice"
            self._repeated(twice, first, f"this one is taken, not that of {first}")
        return self._flatten(self._blocks[name][1], f"configuration '{brief(name)}'", 0)

    def nested(self, name: str, levels: int) -> dict[str, Entry]:
        """`block`, in which values may be mappings of entries again, `levels` deep, and lists may have lists."""
        self._check_known(name)
        self._check_single(name)
        return self._flatten(self._blocks[name][1], f"'{brief(name)}'", 0, levels)

    def values(self) -> dict[str, Any]:
        """Return the value that a file without blocks gives each of its keys."""
        for label in self._lost:
            self._check_single(label)
        return {label: self._value(node, label) for label, (_, node) in self._blocks.items()}

    def choice(self, name: str, release: str | None) -> Choice:
        """Return the block that holds a configuration in a release; without one, in the last that has the name."""
        self._check_known(name)
        spans = self.spans()
        try:
            return releases.choose(name, release, self.names, spans)
        except OptionError as error:
            raise OptionError(*parts(error, f"{self.path}: ")) from None

    def spans(self) -> dict[str, Span]:
        """The releases that have each name, as the file's table says."""
        if releases.TABLE not in self._blocks:
            return {}
        self._check_single(releases.TABLE)
        spans = {}
        table = self._blocks[releases.TABLE][1]
        if not isinstance(table, yaml.MappingNode):
            raise OptionError(f"{self._at(table)}: '{releases.TABLE}' must be a mapping of releases to names")
        for key, names in table.value:
            span = Span.read(self._key(key))
            if span is None or not isinstance(names, yaml.SequenceNode):
                raise OptionError(f"{self._at(key)}: '{releases.TABLE}' has lines like 2.1 to 2.3: [NAME, ...]")
            spans |= {self._key(name): span for name in names.value}
        return spans

    def _check_known(self, name: str) -> None:
        if name not in self.names:
            plain = self._plain_names()
            if not plain:
                raise OptionError(f"{self.path}: no configuration '{brief(name)}'; the file has none at all")
            hint = did_you_mean(name, plain, cutoff=0.3)
            raise OptionError(f"{self.path}: no configuration '{brief(name)}'{hint}", self._listed(plain))

    def _plain_names(self) -> list[str]:
        """Return the names without the blocks that hold another's older values."""
        return [name for name in self.names if releases.divided(name)[1] is None]

    def _check_single(self, label: str) -> None:
        if label in self._lost:
            again = self._at(self._blocks[label][0])
            raise OptionError(f"{again}: '{brief(label)}' is given twice; first at {self._at(self._lost[label])}")

    def _repeated(self, twice: str, first: str, outcome: str) -> None:
        """OptionError for a name that stands `twice` in a file. In an old release's, where the last one won, a note
        says which is `outcome`."""
        if not self.is_old:
            raise OptionError(f"{twice}, first at {first}; keep one of them")
        if len(self.notes) < MAX_LISTED:
            self.notes.append(f"{twice}: {outcome}")

    @staticmethod
    def _listed(names: list[str]) -> str:
        shown = names if len(names) <= MAX_LISTED else names[: MAX_LISTED // 3]
        more = f", ... ({len(names)} in the file)" if len(shown) < len(names) else ""
        return f"There are: {', '.join(map(brief, shown))}{more}"

    def _flatten(self, node: yaml.Node, what: str, depth: int, levels: int = 0) -> dict[str, Entry]:
        self._merges += 1
        self._merged += len(node.value) if isinstance(node, yaml.MappingNode) else 0
        if self._merges > MAX_MERGES or depth > MAX_NESTING or self._merged > MAX_MERGED:
            raise OptionError(
                f"{self._at(node)}: more than {MAX_MERGES} merges, or {MAX_NESTING} within each other, or of more than "
                f"{MAX_MERGED} keys; is there a loop?"
            )
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return {}
        if not isinstance(node, yaml.MappingNode) or node.tag != MAPPING_TAG:
            raise OptionError(f"{self._at(node)}: {what} must be a mapping of options, not {_kind(node)}")
        merged: dict[str, Entry] = {}
        explicit: dict[str, Entry] = {}
        written: dict[str, yaml.Node] = {}
        spelled: dict[str, str] = {}
        merged_spelled: dict[str, str] = {}
        for key, value in node.value:
            if key.tag == MERGE_TAG:
                for source in self._merge_sources(value):
                    self._put_over(merged, merged_spelled, self._flatten(source, "what '<<' merges", depth + 1, levels))
                continue
            label = self._key(key)
            same = spelled.setdefault(self._name(label), label)
            if same in explicit:
                first = explicit[same].where
                outcome = f"{_written(value)} is taken, not {_written(written[same])} of {first}"
                other = "" if same == label else f" as '{brief(same)}'"
                self._repeated(f"{self._at(key)}: '{brief(label)}' is given twice in {what}", f"{first}{other}", outcome)
            explicit[label], written[label] = Entry(self._value(value, label, levels), self._at(key)), value
        self._put_over(merged, merged_spelled, explicit)
        return merged

    def _put_over(self, merged: dict[str, Entry], spelled: dict[str, str], above: dict[str, Entry]) -> None:
        """Let keys take the places of the same in `merged`, in whichever spelling; `spelled`: that of each name there."""
        for label, entry in above.items():
            before = spelled.get(self._name(label), label)
            if before != label:
                merged.pop(before, None)
            spelled[self._name(label)] = label
            merged[label] = entry

    def _name(self, label: str) -> str:
        """The name that a key means: with hyphens or underscores, which were two names in old releases."""
        return label if self.is_old else label.replace("-", "_")

    def _merge_sources(self, value: yaml.Node) -> list[yaml.Node]:
        """The mappings of one `<<`; within a list the first one wins, as YAML's merge type has it."""
        return list(reversed(value.value)) if isinstance(value, yaml.SequenceNode) else [value]

    def _value(self, node: yaml.Node, label: str, levels: int = 0) -> Any:
        """A scalar, or a list of scalars; with `levels` a mapping of entries, or a list of lists as well."""
        if levels and isinstance(node, yaml.MappingNode):
            return self._flatten(node, f"'{brief(label)}'", 1, levels - 1)
        if levels and isinstance(node, yaml.SequenceNode) and node.tag == SEQUENCE_TAG:
            return [self._value(item, label) for item in node.value]
        if isinstance(node, yaml.SequenceNode) and node.tag == SEQUENCE_TAG:
            return [self._scalar(item, label) for item in node.value]
        return self._scalar(node, label)

    def _scalar(self, node: yaml.Node, label: str) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise OptionError(f"{self._at(node)}: '{brief(label)}' must be a value or a list of values, not {_kind(node)}")
        try:
            if node.tag in _NUMBERS:
                return self._number(node)
            return self._loader.construct_object(node)
        # what PyYAML raises for `!!bool maybe`, `!!int ""`, `!!timestamp soon`
        except (yaml.YAMLError, ValueError, OverflowError, LookupError, AttributeError) as error:
            tag = node.tag.removeprefix(STANDARD)
            reason = _first_line(error) if isinstance(error, yaml.YAMLError) else f"'{brief(node.value)}' is no valid {tag}"
            raise OptionError(f"{self._at(node)}: '{brief(label)}' cannot be read: {reason}") from None

    def _number(self, node: yaml.ScalarNode) -> int | float | str:
        """A number as people write it. YAML's others (0x11, 1_000, 1:30, .nan) stay text, which no option takes for one."""
        try:
            return _NUMBERS[node.tag](node.value)
        except ValueError:
            return node.value

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise OptionError(f"{self._at(node)}: a key must be a name, not {_kind(node)}")
        return node.value

    def _at(self, node: yaml.Node) -> str:
        return f"{self.path}:{node.start_mark.line + 1}"


def _compose(path: str) -> tuple[yaml.Node | None, _Loader]:
    try:
        return _parsed(input_files.text(path, MAX_BYTES))
    except OSError as error:
        raise OptionError(f"configuration file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except _TooMuch as error:
        raise OptionError(
            f"{path}:{error.problem_mark.line + 1}: {error.problem}; a configuration file is smaller"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise OptionError(f"{path}{line}: not valid YAML: {brief(error.problem or error.context)}") from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise OptionError(f"{path}: not valid YAML: {_first_line(error)}") from None


@lru_cache(maxsize=1)  # several configurations of one file are planned at once
def _parsed(text: str) -> tuple[yaml.Node | None, _Loader]:
    loader = _Loader(text)
    return loader.get_single_node(), loader


def _written(node: yaml.Node) -> str:
    """A value as it is written, or the beginning of a long one."""
    parts = node.value[:MAX_LISTED] if isinstance(node, yaml.SequenceNode) else [node]
    return f"'{brief(' '.join(part.value if isinstance(part, yaml.ScalarNode) else _kind(part) for part in parts))}'"


def _kind(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) and node.tag not in (MAPPING_TAG, SEQUENCE_TAG):
        return f"a {brief(node.tag.removeprefix(STANDARD))}"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else f"'{brief(node.value)}'"


def _first_line(error: BaseException) -> str:
    return brief((str(error) or type(error).__name__).splitlines()[0])
