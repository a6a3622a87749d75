"""Print --help: the common options, the options of a group, the options that contain a word, or all options."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Mapping
from typing import Any

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import HINT, short
from cnn_harness.base.process import command_line, commands
from cnn_harness.harness.options.call import unknown_flag
from cnn_harness.harness.options.catalogue import PLUGINS, Catalogue, Option, format_value, section_options
from cnn_harness.harness.options.sections import SECTIONS, MainOptions, RunOptions, flag

INTRODUCTIONS = {
    "train": "Train a convolutional network on emulated IPUs.",
    "predict": "Print what photos show. WEIGHTS is a run directory, a checkpoint, an .npz or .safetensors file, or "
    "efficientnet-lite0 (included weights). PHOTO is a photo (JPEG, PNG, WebP) or a folder of photos.",
    "validation": "Validate checkpoints with the options that their training recorded.",
    "inference_embedded": "Measure the throughput and latency of inference with a compiled program.",
    "restore": "Resume a run. Options on the command line override the recorded ones.",
}
_CALL = ("dry_run", "explain", "help")
_DATA = ("dataset", "data_dir", "image_size", "model", "model_size", "precision", "micro_batch_size")
COMMON = {  # the common options of each script and of cnn predict, in the order of the output
    "predict": ("output", "tta", "image_size", "precision", "help"),
    "train": (
        "config", "list_configs", "dataset", "data_dir", "image_size", "augment", "model", "model_size", "init_path",
        "epochs", "micro_batch_size", "gradient_accumulation_count", "optimiser", "abs_learning_rate", "lr_schedule",
        "precision", "shards", "pipeline", "replicas", "logs_path", "seed", *_CALL,
    ),
    "validation": (
        "restore_path", "predict", "output", "tta", "valid_batch_size", "latency", "repeat", "logs_path", "config", *_DATA,
        *_CALL,
    ),
    "restore": (
        "restore_path", "epochs", "iterations", "stop_after", "abs_learning_rate", "lr_schedule", "data_dir", "shards",
        "pipeline", "replicas", "validation", "max_ckpts_to_keep", *_CALL,
    ),
    "inference_embedded": ("restore_path", "iterations", "num_inference_thread", "config", *_DATA, *_CALL),
}  # fmt: skip
GROUPS = {
    "main": "configuration, network, learning-rate curve, dry run",
    "dataset": "files, classes, preprocessing and augmentation of images",
    "training": "batch size, length, learning rate, optimiser, initial weights, distributed training",
    "checkpoint": "checkpoints, validation, averages of weights",
    "device": "pipeline, replicas, precision, number formats, seed, profiles, compiler options",
    "logging": "run directory, log lines, TensorBoard, Weights & Biases, MLflow",
}
BARE, ALL = "common", "all"  # the topics of --help without a word, and of --help all


def help_text(known: Catalogue, options: RunOptions, script: str) -> str:
    """Return the text of --help TOPIC. Raise OptionError with the nearest names if the topic is unknown.

    Without a topic, the text has the common options and the options of the model and schedule that the call chooses. With
    --release, it has every option, as in the original.
    """
    main, titles = options.main, _titles(options.main)
    page = commands.prog(script).split()[-1]
    page = page if page in COMMON else script
    usage = f"{commands.prog(f'{script}.py')} {commands.usage(script)}[options]"
    parser = command_line.HelpParser(description=INTRODUCTIONS[page], add_help=False, usage=usage)
    short_page = main.help == BARE and not main.release
    if short_page:
        own = {section for _, name, section in PLUGINS if name in options.sources}
        chosen = [option for option in known.options.values() if option.section in own]
        group = parser.add_argument_group("Common options")
        for name in COMMON[page]:
            if name in known.options and known.options[name].section not in own:
                _add(group, known.options[name])
    else:
        chosen = _chosen(known, ALL if main.help == BARE else main.help)
    for section in dict.fromkeys(option.section for option in chosen):
        group = parser.add_argument_group(titles[section], _others(section, main))
        for option in chosen:
            if option.section == section:
                _add(group, option, all_names=not short_page)
    text = parser.format_help().rstrip("\n")
    if page != script and short_page:
        return f"{text}\n\n" + commands.as_invoked(f"All options of {script}.py are accepted, too (see {script}.py --help).")
    return "\n".join([text, "", *_topics(titles, main)]) if short_page else text


def own_help(own: type, usage: str, description: str, words: Mapping[str, str], more: str) -> str:
    """Return the text of --help of a command with options of its own. `words` are its arguments without a flag."""
    parser = command_line.HelpParser(
        usage=usage, description=description, epilog=more, add_help=False, formatter_class=RawDescriptionHelpFormatter
    )
    for name, text in words.items():
        parser.add_argument(name, help=text)
    for option in section_options("own", own):
        _add(parser, option)
    return parser.format_help().rstrip("\n")


def _topics(titles: Mapping[str, str], main: MainOptions) -> list[str]:
    """Return a line for each topic of --help."""
    lines = {name: f"{title}: {GROUPS[name]}" if name in GROUPS else title for name, title in titles.items()}
    lines |= {name: f"{lines[name]} ({_others(name, main)})" for _, _, name in PLUGINS}
    lines |= {ALL: "every option", "WORD": "options whose names contain this word, as in --help rate"}
    return [f"  --help {topic:<12}{line}" for topic, line in lines.items()]


def _titles(main: MainOptions) -> dict[str, str]:
    """Return the title of each group of options. The groups of a model and a schedule have their names."""
    titles = {name: cls.__doc__ for name, cls in SECTIONS.items()}
    for folder, option, section in PLUGINS:
        chosen = getattr(main, option)
        titles[section] = getattr(plugins.load(folder, chosen), "TITLE", f"{plugins.WHAT[folder]} {chosen}".capitalize())
    return titles


def _others(section: str, main: MainOptions) -> str | None:
    """Return how to see the options of another model or schedule; None for other groups of options."""
    for folder, option, own in PLUGINS:
        if own == section:
            others = "|".join(name for name in plugins.names(folder) if name != getattr(main, option))
            return f"for others: {flag(option)} {others}"
    return None


def _chosen(known: Catalogue, topic: str) -> list[Option]:
    word = topic.lower().lstrip("-").replace("-", "_")
    found = [o for o in known.options.values() if word in (ALL, o.section)]
    if not found:
        named = {s.option.name for name, s in known.spellings.items() if f"_{word}" in f"_{name.lower()}"}
        found = [option for name, option in known.options.items() if name in named]
    if not found:
        flag = f"--{word}".replace("_", "-")
        raise OptionError(f"--help {short(topic)}: {unknown_flag(flag, [*known.sections(), *known.flags()])}")
    return found


def _add(group: Any, option: Option, all_names: bool = False) -> None:
    meta = option.meta
    flags = [option.flag, *meta["flags"]]
    if option.base is bool and option.default is True:
        flags = ["--no-" + option.flag[2:]]
    status = " (does not change the results)" if meta["kind"] == HINT else ""
    default = "" if option.base is bool or option.default in (None, ()) else f" [{format_value(option.default)}]"
    others = [flag(name) for name in (*meta["aliases"], *meta["rewrites"])]
    names = f" (also {' '.join(others)})" if others and all_names else ""
    text = (meta["help"] + default + status + names).replace("%", "%%")
    if option.base is bool:
        group.add_argument(*flags, action="store_true", help=text, dest=option.name)
        return
    kind = meta["metavar"] or {int: "N", float: "X", str: "TEXT"}[option.base]
    if " " in kind:  # a value for each word
        group.add_argument(*flags, nargs=len(kind.split()), metavar=tuple(kind.split()), help=text, dest=option.name)
        return
    metavar = "{" + ",".join(meta["choices"]) + "}" if meta["choices"] else kind
    several = None if meta["repeated"] else "+" if option.several else "?" if meta["bare"] else None
    group.add_argument(*flags, nargs=several, metavar=metavar, help=text, dest=option.name)
