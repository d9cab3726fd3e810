"""Values of other trainers' configurations that need more than another name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

Conversion = Callable[[str, Any, Any, Mapping[str, Any]], dict[str, Any]]
"""(setting, value by the table, value as written, all keys) → settings with values."""
HELD_OUT = {"test_datasets": "validation=", "validation_file": "validation=", "test_file": "test=", "eval_dataset": "validation="}
"""Keys whose data sets are no training data → how ftcli is told."""


PLAIN = {("type", "pretrain"), ("type", "completion"), ("split", "train")}
"""What a data set of plain texts may say besides its path without asking for anything that is not done here."""
BOTH = frozenset(
    [
        "version",
        "cpu_offload",
        "auto_wrap_policy",
        "min_num_params",
        "transformer_layer_cls_to_wrap",
        "cpu_ram_efficient_loading",
        "state_dict_type",
        "activation_checkpointing",
        "reshard_after_forward",
        "xla",
        "xla_fsdp_v2",
        "xla_fsdp_settings",
        "xla_fsdp_grad_ckpt",
    ]
)
"""Keys of `fsdp_config` that transformers reads."""
FIRST = frozenset(["forward_prefetch", "backward_prefetch", "use_orig_params", "sync_module_states", "limit_all_gathers"])
"""Those that it reads with FSDP 1 only."""
RENAMED = {"offload_params": "cpu_offload", "sharding_strategy": "reshard_after_forward"}
"""Keys of accelerate → those of transformers."""
ACCELERATE = {
    "split_batches": False,
    "even_batches": True,
    "use_seedable_sampler": True,
    "non_blocking": False,
    "use_configured_state": False,
}
"""Defaults of transformers' `accelerator_config`."""
STRATEGIES = {"full_shard": True, "1": True, "true": True, "shard_grad_op": False, "2": False, "false": False}
"""Strategy, or its number → whether weights are divided again after the forward pass."""


class Lost(Exception):  # noqa: N818 - no failure: the key is listed with these words
    """A value has no counterpart; says why."""

    def __init__(self, words: str, anyway: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            anyway: what is known all the same; None: nothing, and nothing of what would come with the value.
        """
        super().__init__(words)
        self.anyway = anyway


def word(value: Any) -> str:
    """A value as tables name it: true, false, none, 4, bfloat16, {'a': 1, 'b': 2} with its keys in order."""
    if isinstance(value, Mapping):
        value = dict(sorted(value.items(), key=str))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, (bool, str)) or value is None else str(value)


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Lost(f"{value!r} is not a number") from None
    if not math.isfinite(number):
        raise Lost(f"{number:g} is not a finite number")
    return number


def share(to: str, value: Any, _: Any, __: Mapping[str, Any]) -> dict[str, Any]:
    """A share of the rows; a number of rows has no counterpart."""
    number = _number(value)
    if number >= 1:
        raise Lost(
            f"a number of rows ({number:,.0f}), but {to} is a share of the rows: set it, otherwise nothing is held out for evaluation"
        )
    return {to: number}


def source(to: str, value: Any, _: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """A path, several, or tables with a path each; those of held-out data get the name of their split."""
    items = value if isinstance(value, list) else [value]
    columns = {str(item["text_column"]) for item in items if isinstance(item, Mapping) and item.get("text_column")}
    column = {"dataset.text_column": min(columns)} if len(columns) == 1 else {}
    found = []
    for item in items:
        path = item.get("path") if isinstance(item, Mapping) else item
        if not isinstance(path, str) or (isinstance(item, Mapping) and _says_more(item)):
            raise Lost("it is more than a path: give its files as dataset.sources", column)
        found.append(HELD_OUT.get(keys.get("", ""), "") + path)
    if len(columns) > 1:
        raise Lost("its text columns have different names, but dataset.text_column is the same for all sources", {})
    return {to: found, **column}


def _says_more(item: Mapping[str, Any]) -> bool:
    return any(each is not None and key not in {"path", "text_column"} and (key, str(each)) not in PLAIN for key, each in item.items())


def within(item: Mapping[str, Any], formats: Collection[str]) -> dict[str, Any]:
    """`data_files` of a data set by their own paths; empty where the set names none, or a format (path: json) in place of a folder.

    Args:
        formats: those that may stand for a path.
    """
    path, files = item.get("path"), item.get("data_files")
    if not files or not isinstance(path, str) or path in formats:
        return {}

    def place(file: Any) -> Any:
        return f"{path.rstrip('/')}/{file}" if isinstance(file, str) and "://" not in file and not file.startswith("/") else file

    return {"data_files": [place(file) for file in files] if isinstance(files, list) else place(files)}


def accumulation(to: str, value: Any, _: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of an optimizer step on a device → batches that are summed."""
    steps = _number(value) / _number(keys.get("micro_batch_size", 1))
    if steps < 1:
        raise Lost("smaller than micro_batch_size")
    return {to: int(steps)}


def per_epoch(to: str, value: Any, _: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Times an epoch → a share of all steps, or every epoch."""
    part, strategy = 1 / (_number(value) * _number(keys.get("num_epochs", 1))), to.replace("_steps", "_strategy")
    if part == 1:
        return {strategy: "epoch"}
    if part > 1:
        raise Lost("less often than once per run")
    return {to: part, strategy: "steps"}


def full(to: str, value: Any, written: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    """bf16: full has weights of bfloat16 as well."""
    return {to: value, "model.dtype": "bfloat16"} if word(written) == "full" else {to: value}


def overflow(to: str, value: Any, written: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's strategies of packing differ in what happens to texts that are too long."""
    return {to: value, "packing.truncation_strategy": "keep_start" if word(written) in ("bfd", "ffd") else "split"}


def names(to: str, value: Any, _: Any, __: Mapping[str, Any]) -> dict[str, Any]:
    """Names of layers; an expression that finds them has no counterpart."""
    if isinstance(value, str) and set("[](){}\\*+?|^$") & set(value):
        raise Lost(f"a regular expression; {to} is a list of names, or all-linear")
    return {to: value}


def words(to: str, value: Any, _: Any, __: Mapping[str, Any]) -> dict[str, Any]:
    """What fsdp may be: words in a text or a list, or whether at all."""
    if isinstance(value, bool):
        return {to: "full_shard"} if value else {}
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return {to: text} if text else {}


def changed(to: str, value: Any, _: Any, __: Mapping[str, Any]) -> dict[str, Any]:
    """Options of accelerate that are not what they are without a word; a dump holds them all."""
    if not isinstance(value, Mapping):
        return {to: value}
    said = {name: each for name, each in value.items() if each is not None and ACCELERATE.get(str(name)) is not each}
    return {to: said} if said else {}


def own_place(_: str, value: Any, __: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The folder of the logs, which a dump always holds."""
    if str(value).startswith(f"{keys.get('output_dir')}/runs/"):
        return {}
    raise Lost("set the environment variable TENSORBOARD_LOGGING_DIR")


def sharded(config: Mapping[str, Any], version: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What transformers reads of a table for FSDP, in its words, and why it does not read the other keys.

    Args:
        version: of FSDP where the table says none; None: transformers' own choice, which needs no saying.
    """
    said = {str(name).removeprefix("fsdp_"): value for name, value in config.items() if value is not None}
    found, unread = {} if version is None or not config else {"version": version}, {}
    first = word(said.get("version", version)) == "1"
    for name, value in said.items():
        ours, given = RENAMED.get(name, name), value
        if ours == "reshard_after_forward":
            given = STRATEGIES.get(word(value))
            if given is None or (first and not given):
                unread[name] = (
                    f"{word(value)}: under FSDP 1 accelerate shards the whole model" if first else f"{word(value)} exists in FSDP 1 only"
                )
            elif not first:
                found[ours] = given
        elif ours in BOTH or (first and ours in FIRST):
            found[ours] = given
        else:
            unread[name] = "FSDP 2 has no such option" if ours in FIRST else "transformers does not read it"
    return found, {str(name): unread[plain] for name in config if (plain := str(name).removeprefix("fsdp_")) in unread}


CONVERSIONS: dict[str, Conversion] = {
    "share": share,
    "source": source,
    "accumulation": accumulation,
    "per_epoch": per_epoch,
    "full": full,
    "overflow": overflow,
    "words": words,
    "names": names,
    "changed": changed,
    "own_place": own_place,
}
