"""Read named configurations from a YAML file, with merge keys and line numbers. No code in the file is executed.

Numbers and dates stay text, such as 1e-3 or 007; options convert them like arguments of a command line. A block is read
only when it is needed, so errors in other blocks do not matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from cnn_harness.base.errors import OptionError, parts
from cnn_harness.base.fields import short
from cnn_harness.base.plugins import did_you_mean
from cnn_harness.base.storage import input_files
from cnn_harness.harness.options import releases
from cnn_harness.harness.options.releases import Span

MAX_BYTES = 1 << 18  # PyYAML needs about ten seconds for this many bytes.
ALL = "all"  # The value of --list-configs without a word.
NEVER_READ = ("gradient_accumulation",)  # keys in published files that no release used
# Only the file of the first release has these keys. It also repeats some keys.
MARKS = ("gradient_accumulation", "xla_recompute")
MAX_LISTED = 24  # the largest number of names in a message
STANDARD = "tag:yaml.org,2002:"
MERGE = STANDARD + "merge"
Pairs = list[tuple[yaml.Node, yaml.Node]]


@dataclass(frozen=True)
class Entry:
    """A value of a block, and the file and line of its key."""

    value: Any
    where: str


@dataclass(frozen=True)
class Block:
    """The chosen configuration."""

    name: str  # NAME, or NAME@RELEASE if the call names a release
    release: str | None  # the release that the values come from, if the file says so
    entries: dict[str, Entry]
    notes: tuple[str, ...]  # notes for the user


class _Loader(yaml.SafeLoader):
    """A loader whose mappings keep the lines of their keys.

    `is_old` is True for a file of the first release. There, a-b and a_b are different keys, and the last of several equal
    keys wins.
    """

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path, self.is_old = path, False

    def at(self, node: yaml.Node) -> str:
        """Return the file and the line of a node."""
        return f"{self.path}:{node.start_mark.line + 1}"

    def unique(self, pairs: Pairs, meant: Callable[[str], str] = str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return {meant(key): (key, value)}. Raise OptionError for a repeated key, except in a file of the first release."""
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in pairs:
            if not isinstance(key, yaml.ScalarNode):
                raise OptionError(f"{self.at(key)}: a key must be a name, not a list or a mapping")
            first = found.get(meant(key.value), (key,))[0]
            if first is not key and not self.is_old:
                raise OptionError(
                    f"{self.at(key)}: '{short(key.value)}' is given twice, first at {self.at(first)}; delete one of them"
                )
            found[meant(key.value)] = key, value
        return found

    def entries(self, node: yaml.Node) -> dict[str, Entry]:
        """Return the entries of a mapping.

        Keys of the mapping win over merged keys, and later merges win over earlier merges. If one merge has a list of
        mappings, the first mapping wins.
        """
        if not isinstance(node, yaml.MappingNode):
            raise OptionError(f"{self.at(node)}: '{short(node.value)}' is not a mapping of options")

        def meant(key: str) -> str:
            return key if self.is_old else key.replace("-", "_")

        found: dict[str, tuple[str, Entry]] = {}
        for _, value in (pair for pair in node.value if pair[0].tag == MERGE):
            merged = self.construct_object(value, deep=True) or {}
            for source in reversed(merged) if isinstance(merged, list) else [merged]:
                if not isinstance(source, dict):
                    raise OptionError(f"{self.at(value)}: << merges mappings of options, not '{short(source)}'")
                found |= {meant(key): (key, entry) for key, entry in source.items()}
        own = self.unique([pair for pair in node.value if pair[0].tag != MERGE], meant)
        for name, (key, value) in own.items():
            found[name] = key.value, Entry(self.construct_object(value, deep=True), self.at(key))
        return dict(found.values())

    def items(self, node: yaml.SequenceNode) -> list[Any]:
        """Return the values of a list."""
        return self.construct_sequence(node, deep=True)

    def switch(self, node: yaml.ScalarNode) -> bool | str:
        """Return true or false, or another word unchanged."""
        return self.bool_values.get(self.construct_scalar(node).lower(), node.value)

    yaml_constructors = {
        **{STANDARD + kind: yaml.SafeLoader.construct_scalar for kind in ("str", "int", "float", "timestamp", "value")},
        STANDARD + "null": yaml.SafeLoader.construct_yaml_null,
        STANDARD + "bool": switch,
        STANDARD + "map": entries,
        STANDARD + "seq": items,
        None: yaml.SafeLoader.construct_undefined,
    }


def choose(path: str, name: str, release: str | None = None) -> Block:
    """Return the configuration `name` or `name`@release of the file at `path`; without a release, its newest values."""
    file = ConfigFile(path)
    plain, written = releases.split_name(name)
    if plain not in file.names and name in file.names:  # the @ is part of the name
        plain, written = name, None
    if release and written and releases.version(release) != releases.version(written):
        raise OptionError(f"--config {name} and --release {release} name different releases; give one of them")
    block, found, note = file.choice(plain, release or written)
    entries, notes = file.block(block), [note] * bool(note)
    for key, entry in list(entries.items()):
        if key.replace("-", "_") in NEVER_READ or (file.is_old and ("-" in key or key.startswith("no_"))):
            notes.append(f"{entry.where}: {key} is ignored, because its release did not read it")
            del entries[key]
    return Block(f"{plain}@{found}" if release or written else name, found, entries, tuple(notes))


def listing(path: str, word: str) -> str:
    """Return a line for each configuration whose name or summary contains the word.

    If there is none, raise OptionError with the nearest names.
    """
    file = ConfigFile(path)
    names, spans = [name for name in file.names if releases.split_name(name)[1] is None], file.spans()
    lines = {name: _summary({key: entry.value for key, entry in file.block(name).items()}) for name in names}
    lines |= {name: f"{lines[name]} ({spans[name]})" for name in names if name in spans}
    found = [name for name in names if word == ALL or word.lower() in f"{name} {lines[name]}".lower()]
    if not found:
        hint = did_you_mean(word, names, cutoff=0.3)
        raise OptionError(
            f"--list-configs {short(word)}: none of the {len(names)} configurations in {path} contains that word{hint}"
        )
    width = max(map(len, found))
    return "\n".join(f"{name:<{width}}  {lines[name]}" for name in found)


def _summary(values: Mapping[str, Any]) -> str:
    """Return the network, data, batch, length and layout that a block sets."""
    counts = [values.get(name, 1) for name in ("micro_batch_size", "gradient_accumulation_count", "replicas")]
    parts = [
        " ".join(str(values[name]) for name in ("model", "model_size") if name in values),
        str(values.get("dataset", "")),
        f"batch {' x '.join(map(str, counts))}" if "micro_batch_size" in values else "",
        next((f"{values[name]} {name}" for name in ("epochs", "iterations") if name in values), ""),
        f"{values['shards']} stages" if values.get("shards", "1") not in ("1", None) else "",
        *(str(values.get(name, "")) for name in ("precision", "optimiser")),
    ]
    return ", ".join(filter(None, parts))


class ConfigFile:
    """A configuration file. Each block is read when it is needed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._loader, self._blocks = _parsed(path, _text(path))
        self.is_old = self._loader.is_old

    @property
    def names(self) -> list[str]:
        """The names of the blocks in the order of the file."""
        return [name for name in self._blocks if name != releases.TABLE]

    def content(self, name: str) -> Any:
        """Return the value of a top-level key."""
        self._loader.recursive_objects.clear()  # a block with an error may have left entries
        with _yaml_errors(self.path):
            return self._loader.construct_object(self._blocks[name], deep=True)

    def block(self, name: str, depth: int = 0) -> dict[str, Entry]:
        """Return {option: Entry} of one block. The block may contain `depth` levels of mappings and lists of lists."""
        self._check_known(name)
        entries = self._mapping(name)
        _check_values(entries, depth)
        return entries

    def _mapping(self, name: str) -> dict[str, Entry]:
        entries = self.content(name) or {}
        if not isinstance(entries, dict):
            raise OptionError(f"{self._loader.at(self._blocks[name])}: '{short(name)}' must be a mapping")
        return entries

    def values(self) -> dict[str, Any]:
        """Return {key: value} for a file that has no blocks."""
        entries = {name: Entry(self.content(name), self._loader.at(node)) for name, node in self._blocks.items()}
        _check_values(entries, 0)
        return {name: entry.value for name, entry in entries.items()}

    def choice(self, name: str, release: str | None) -> tuple[str, str | None, str]:
        """Return `releases.choose` for a configuration of this file."""
        self._check_known(name)
        try:
            return releases.choose(name, release, self.names, self.spans())
        except OptionError as error:
            raise OptionError(*parts(error, f"{self.path}: ")) from None

    def spans(self) -> dict[str, Span]:
        """Return the releases of each configuration, from the key `releases` of the file."""
        if releases.TABLE not in self._blocks:
            return {}
        spans = {}
        for key, names in self._mapping(releases.TABLE).items():
            span = Span.read(key)
            if span is None or not isinstance(names.value, list) or not all(isinstance(name, str) for name in names.value):
                raise OptionError(f"{names.where}: '{releases.TABLE}' must have lines such as 2.1 to 2.3: [NAME, ...]")
            spans |= dict.fromkeys(names.value, span)
        return spans

    def _check_known(self, name: str) -> None:
        if name not in self.names:
            file = name.endswith((".yml", ".yaml"))
            hint = "; give a file as --config-path" if file else did_you_mean(name, self._plain_names(), cutoff=0.3)
            raise OptionError(f"{self.path}: no configuration '{short(name)}'{hint}", self.available())

    def available(self) -> str:
        """Return a line with the names of the configurations."""
        plain = self._plain_names()
        if not plain:
            return "The file has no configurations"
        shown = plain if len(plain) <= MAX_LISTED else plain[: MAX_LISTED // 3]
        more = f", ... ({len(plain)} in the file)" if len(shown) < len(plain) else ""
        return f"Available: {', '.join(map(short, shown))}{more}"

    def _plain_names(self) -> list[str]:
        return [name for name in self.names if releases.split_name(name)[1] is None]


def _check_values(entries: dict[str, Entry], depth: int) -> None:
    """Raise OptionError for entries that are neither values nor lists of values.

    The first `depth` levels may also have mappings and lists of lists.
    """
    for name, entry in entries.items():
        values = entry.value if isinstance(entry.value, list) else [entry.value]
        if depth and isinstance(entry.value, dict):
            _check_values(entry.value, depth - 1)
        elif any(isinstance(value, dict | list) and not (depth and _is_flat(value)) for value in values):
            raise OptionError(f"{entry.where}: '{short(name)}' must be a value or a list of values")


def _is_flat(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(item, dict | list) for item in value)


def _text(path: str) -> str:
    try:
        return input_files.text(path, MAX_BYTES)
    except UnicodeDecodeError as error:
        raise OptionError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except (OSError, ValueError) as error:  # ValueError: no file can have this path
        hint = did_you_mean(os.path.basename(path), _files_beside(path)) if isinstance(error, FileNotFoundError) else ""
        raise OptionError(f"configuration file {short(path)}: {getattr(error, 'strerror', None) or error}{hint}") from None


def _files_beside(path: str) -> list[str]:
    """Return the names of the YAML files in the folder of a path."""
    with suppress(OSError):
        return [name for name in os.listdir(os.path.dirname(path) or ".") if name.endswith((".yml", ".yaml"))]
    return []


@lru_cache(maxsize=2)  # `cnn plan` reads several configurations of one file
def _parsed(path: str, text: str) -> tuple[_Loader, dict[str, yaml.Node]]:
    """Return a loader, and the node of each block by name."""
    with _yaml_errors(path):
        loader = _Loader(path, text)
        root = loader.get_single_node()
    if root is None:
        return loader, {}
    if not isinstance(root, yaml.MappingNode):
        raise OptionError(f"{loader.at(root)}: the file must be a mapping of block names to options")
    blocks = [node.value for _, node in root.value if isinstance(node, yaml.MappingNode)]
    loader.is_old = any(key.value in MARKS for pairs in blocks for key, _ in pairs)
    return loader, {key.value: node for key, node in loader.unique(root.value).values()}


@contextmanager
def _yaml_errors(path: str) -> Iterator[None]:
    """Turn errors of the YAML parser into OptionError with file and line."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise OptionError(f"{path}{line}: not valid YAML: {short(error.problem or error.context)}") from None
    except RecursionError:
        raise OptionError(f"{path}: lists and mappings are too deeply nested") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise OptionError(f"{path}: not valid YAML: {short((str(error) or type(error).__name__).splitlines()[0])}") from None
