"""The scripts for each shell, which answer on TAB by themselves: no Python is started then."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from base import version
from base.process import commands
from harness.completion import tables
from harness.completion.tables import Flag
from harness.options.sources import DEFAULT_CONFIG_PATH

Tables = Mapping[str, Mapping[str, Flag]]  # flags by command and spelling
_OPTIONS = ("--help", "--version", "--list-configs")  # of cnn itself
_CONFIGS = (
    r"""sed -n -e '/^releases:/d' -e 's/^\([[:alnum:]][[:alnum:]_.-]*\):.*/\1/p'"""  # the names in a configuration file
)

# The state of one completion, of words that are all given before: `takes`, `values` and `kind` of the flag that the present
# word may be a value of, and whether it may be none.
_BASH = r"""
_cnn() {
    local cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} flag= takes= values= kind= prefix= since=0 i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$_cnn_commands" -- "$cur")
        return
    fi
    if [[ $cur == --*=* ]]; then
        flag=${cur%%=*} prefix=${cur%%=*}= cur=${cur#*=} since=1
    elif [[ $cur != -* ]]; then
        [[ $cur == '=' ]] && cur=
        for ((i = COMP_CWORD - 1; i > 1; i--)); do
            [[ ${COMP_WORDS[i]} == '=' ]] || ((++since))
            [[ ${COMP_WORDS[i]} == -* ]] && flag=${COMP_WORDS[i]} && break
        done
        [[ $cur == "${COMP_WORDS[COMP_CWORD]}" ]] || ((since)) || since=1
    fi
    if [[ -z $flag && $cur == -* ]]; then
        _cnn_flags "$command"
        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur")
        return
    fi
    _cnn_value "$command" "$flag"
    case $takes in
        one | optional) ((since == 1)) || takes= ;;
    esac
    [[ -n $takes ]] || _cnn_value "$command" ''
    if [[ $kind == configs ]]; then
        local file=$_cnn_configs
        for ((i = 2; i < COMP_CWORD - 1; i++)); do
            [[ ${COMP_WORDS[i]} == --config-path ]] && file=${COMP_WORDS[i + 1]}
            [[ $file == '=' ]] && file=${COMP_WORDS[i + 2]}
        done
        values=$(_cnn_names "${file/#\~/$HOME}")
    fi
    mapfile -t COMPREPLY < <(compgen -P "$prefix" -W "$values" -- "$cur")
    if [[ $kind == paths ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -P "$prefix" -f -- "$cur")
    fi
}
complete -F _cnn cnn
"""
_ZSH = r"""
_cnn() {
    local cur=${words[CURRENT]} command=${words[2]} flag= takes= values= kind= since=0 i
    if ((CURRENT == 2)); then
        compadd -- ${=_cnn_commands}
        return
    fi
    if [[ $cur == --*=* ]]; then
        flag=${cur%%=*} since=1
        compset -P '*='
    elif [[ $cur == -* ]]; then
        _cnn_flags $command
        compadd -- ${=values}
        return
    else
        for ((i = CURRENT - 1; i > 2; i--)); do
            ((++since))
            [[ ${words[i]} == -* ]] && flag=${words[i]} && break
        done
    fi
    _cnn_value $command $flag
    case $takes in
        one | optional) ((since == 1)) || takes= ;;
    esac
    [[ -n $takes ]] || _cnn_value $command ''
    if [[ $kind == configs ]]; then
        local file=$_cnn_configs
        i=${words[(I)--config-path]}
        ((i)) && file=${words[i + 1]}
        values=$(_cnn_names ${file/#\~/$HOME})
    fi
    [[ -n $values ]] && compadd -- ${=values}
    [[ $kind == paths ]] && _files
    return 0
}
compdef _cnn cnn
"""


def script(shell: str, found: Tables) -> str:
    """The script for a shell."""
    head = f"# Completion of cnn for {shell}, by {commands.PACKAGE} {version.own()}: cnn completion {shell} prints it\n"
    return head + (_fish(found) if shell == "fish" else _cases(found) + {"bash": _BASH, "zsh": _ZSH}[shell])


def _cases(found: Tables) -> str:
    """Return the tables as functions that bash and zsh understand: commands, flags of a command, values of a flag."""
    usual = _usual(found)
    flags = [f"        {name}) values={shlex.quote(' '.join(each))} ;;" for name, each in found.items()]
    rows = [_row(f"'{name} '", tables.first(name)) for name in found]
    for name, each in found.items():
        rows += [_row(f"'{name} {flag}'", row) for flag, row in each.items() if _values(row) != usual[flag]]
    rows += [_case(f"*' {flag}'", row) for flag, row in usual.items()]
    return "\n".join(
        [
            f"_cnn_commands={shlex.quote(' '.join([*found, *_OPTIONS]))}",
            f"_cnn_configs={shlex.quote(str(DEFAULT_CONFIG_PATH))}",
            f'_cnn_names() {{\n    {_CONFIGS} "$1" 2>/dev/null\n}}',
            "_cnn_flags() {\n    case $1 in", *flags, "        *) values= ;;\n    esac\n}",
            '_cnn_value() {\n    takes= values= kind=\n    case "$1 $2" in', *rows, "    esac\n}",
        ]
    )  # fmt: skip


def _values(flag: Flag) -> tuple[str, tuple[str, ...], str]:
    takes = "" if flag.takes == tables.NOTHING else flag.takes
    return takes, flag.words, flag.kind


def _usual(found: Tables) -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Return the values that a flag takes in most commands that have it."""
    counts: dict[str, Counter] = {}
    for flags in found.values():
        for name, flag in flags.items():
            counts.setdefault(name, Counter())[_values(flag)] += 1
    return {name: each.most_common(1)[0][0] for name, each in counts.items()}


def _row(pattern: str, flag: Flag) -> str:
    return _case(pattern, _values(flag))


def _case(pattern: str, values: tuple[str, Sequence[str], str]) -> str:
    takes, words, kind = values
    given = {"takes": takes, "values": " ".join(words), "kind": kind}
    return f"        {pattern}) " + " ".join(f"{k}={shlex.quote(v)}" for k, v in given.items() if v) + " ;;"


def _fish(found: Tables) -> str:
    """Return a line of `complete` for each command and each of its flags."""
    lines = ["complete -c cnn -f", f"function __cnn_configs\n    {_CONFIGS} {shlex.quote(str(DEFAULT_CONFIG_PATH))}\nend"]
    for name in found:
        text = _fish_text(commands.COMMANDS[name].help)
        lines.append(f"complete -c cnn -n __fish_use_subcommand -a {name} -d {text}")
    lines += [f"complete -c cnn -n __fish_use_subcommand -l {option[2:]}" for option in _OPTIONS]
    for name, flags in found.items():
        here = f"complete -c cnn -n '__fish_seen_subcommand_from {name}'"
        first = tables.first(name)
        lines.append(f"{here}{' -F' if first.kind else ' -f'}{_fish_words(first.words)}")
        for flag, row in flags.items():
            spelled = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            lines.append(f"{here} {spelled}{_fish_values(row)} -d {_fish_text(commands.spoken(row.help))}")
    return "\n".join(lines) + "\n"


def _fish_values(flag: Flag) -> str:
    if flag.kind == tables.CONFIGS:
        return " -x -a '(__cnn_configs)'"
    requires = "" if flag.takes in (tables.NOTHING, tables.OPTIONAL) else " -r"
    return requires + (" -F" if flag.kind == tables.PATHS else "") + _fish_words(flag.words)


def _fish_words(words: Sequence[str]) -> str:
    return f" -a {shlex.quote(' '.join(words))}" if words else ""


def _fish_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
