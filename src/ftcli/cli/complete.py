"""What a shell offers behind the words typed so far."""

from __future__ import annotations

from typer._click.shell_completion import CompletionItem

from ftcli.cli.options import Option, options_of
from ftcli.cli.spec import CommandSpec

BY_PLUGIN_OR_TASK = {
    "train.mode": ("classify", "regress", "pretrain", "sft"),
    "packing.strategy": ("none", "concat", "bfd"),
    "loader.collator": ("dynamic", "fixed", "bucketed", "packed"),
    "tokenizer.engine": ("auto", "hf", "gigatoken", "fastokens", "splintr"),
    "runtime.executor": ("local", "ray"),
    "runtime.ray_address": ("auto", "local"),
    "tracking.report_to": ("tensorboard", "mlflow", "wandb", "trackio"),
    "kind": ("arrow", "jsonl", "mds", "megatron", "nanotron"),  # export --format
}
"""Built-in names of settings that plugins can extend; no plugin is loaded to complete a word."""


def complete(spec: CommandSpec, typed: list[str], incomplete: str) -> list[CompletionItem]:
    """Options, values of the option before, or values of the positional argument; nothing where the shell's files are meant."""
    options = {flag: option for option in options_of(spec) for flag in option.flags}
    before = next((word for word in reversed(typed) if word != "="), "").replace("_", "-") if typed else ""
    option = options.get(before)
    if option is not None and (option.takes in {"value", "list"} or option.choices) and not incomplete.startswith("-"):
        return _offer(_values(option), incomplete)
    if incomplete.startswith("-"):
        visible = {flag: option for flag, option in options.items() if not option.hidden}
        negative = {"--no-" + flag.removeprefix("--"): option for flag, option in visible.items() if option.takes == "bool"}
        return [
            CompletionItem(flag, help=_short(option.help))
            for flag, option in {**visible, **negative}.items()
            if flag.startswith(incomplete)
        ]
    slots = [own for own in spec.own if not own.flags]
    words = _positional(typed, options)
    if not slots or (len(words) >= len(slots) and slots[-1].kind not in {"words", "paths"}):
        return []
    slot = slots[min(len(words), len(slots) - 1)]
    if slot.choices:
        return _offer(slot.choices, incomplete)
    return _offer(_profiles(), incomplete) if spec.name == "profiles" and words == ["show"] else []


def _short(text: str) -> str:
    """The help without its remarks: shells show one line."""
    return text.partition(" [")[0].partition("; ")[0][:70]


def _values(option: Option) -> tuple[str, ...]:
    if option.key == "profile":
        return ("auto", *_profiles())
    return option.choices or BY_PLUGIN_OR_TASK.get(option.key, ())


def _profiles() -> tuple[str, ...]:
    from ftcli.sources import profile_names

    return tuple(profile_names())


def _positional(typed: list[str], options: dict[str, Option]) -> list[str]:
    words: list[str] = []
    value_follows = False
    for word in typed:
        if not value_follows and not word.startswith("-"):
            words.append(word)
        option = options.get(word.replace("_", "-"))
        value_follows = option is not None and option.takes in {"value", "list"}
    return words


def _offer(values: tuple[str, ...], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(value) for value in values if value.startswith(incomplete)]
