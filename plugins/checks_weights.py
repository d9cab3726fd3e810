"""Checks of trained weights: all of them loaded, an architecture that is theirs, and the tokenizer that they were trained with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

HARMLESS = (
    "dropout",
    "pdrop",
    "layerdrop",
    "use_cache",
    "_token_id",
    "initializer",
    "label",
    "problem_type",
    "output_",
    "return_",
    "dtype",
    "attn",
    "name_or_path",
    "max_position",
    "architectures",
    "transformers_version",
)
"""Parts of the names of configuration keys that may be changed without changing what trained weights compute, or that ftcli sets."""
BUFFERS = ("position_ids", "inv_freq", "masked_bias", ".attn.bias", ".attention.bias")
"""Ends of names that files of earlier releases hold and that are computed."""
RENAMED = 0.05
"""Share of the ids that may have other names than the model knows: unused tokens are given new ones. Another model's tokenizer names most otherwise."""
HEAD_WORDS = ("score", "classifier", "classification_head", "logits_proj")


def loaded(probe: Probe) -> Check:
    from ftcli.core.models.adapter import is_adapter
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    source = probe.settings.model.name_or_path
    if source is None:
        _ = probe.config
        raise Missing("the weights are random, from --model-config")
    found = probe.model.ftcli_loaded
    new, other, unused = (found.get(name, []) for name in ("missing_keys", "mismatched_keys", "unexpected_keys"))
    evidence: dict[str, Any] = {"new": new[:8], "other_shape": other[:8], "unused": unused[:8]}
    if not probe.task.needs_labels and (new or other):
        return failed(
            f"the output layer of {source} is not in its file ({', '.join([*new, *other][:3])}): it would start at random on top of pretrained weights",
            "Use weights that were saved with their language-model head (AutoModelForCausalLM); if their head is the embedding, set tie_word_embeddings to true"
            " in config.json.",
            **evidence,
        )
    changed = _changed(probe)
    if changed:
        return warned(
            f"{source} is loaded with an architecture other than its own: {', '.join(changed[:4])}",
            "Remove these keys from --config-overrides: the weights were trained with the original values.",
            changed=changed,
            **evidence,
        )
    if lost := _left_out(probe.model, unused):
        return warned(
            f"{source} holds {len(lost)} weights of the base model that its configuration has no layer for, first {lost[0]}: they are not loaded",
            "Compare config.json with the weights beside it (num_hidden_layers), and use the configuration they were saved with.",
            left_out=lost[:8],
            **evidence,
        )
    heads = [name for name in unused if any(word in name for word in HEAD_WORDS)]
    if new and heads:
        return warned(
            f"{source} has a head ({heads[0]}) that this model cannot load, and the head used here ({new[0]}) is new",
            "To keep its head, load it with the architecture it was saved with.",
            **evidence,
        )
    tied = None if probe.task.needs_labels else _tied(probe.model)
    if tied == (True, False):
        return warned(
            f"config.json of {source} has tie_word_embeddings = true, but its file holds an output layer that is not the embedding: both are loaded and trained"
            " apart, and a program that ties them replaces one by the other",
            "If the two were trained apart, set tie_word_embeddings to false in config.json; if not, remove the wrong one from the file.",
            **evidence,
        )
    if tied == (False, True):
        return noted(
            f"all weights of {source} were loaded; its output layer equals the embedding, but config.json has tie_word_embeddings = false: they are trained apart",
            **evidence,
        )
    if (new or other) and not is_adapter(probe.settings):
        return noted(f"all weights of {source} were loaded, the head is new: {', '.join([*new, *other])}", **evidence)
    return passed(f"all weights of {source} were loaded", **evidence)


def _tied(model: Any) -> tuple[bool, bool] | None:
    """Whether the configuration ties the output layer to the embedding, and whether the two are equal; None where the family has no such pair."""
    from ftcli.core.models.adapter_base import inner

    own = inner(model)
    table, head = (getattr(layer, "weight", None) for layer in (own.get_input_embeddings(), own.get_output_embeddings()))
    if not own._tied_weights_keys or table is None or head is None or table.shape != head.shape:
        return None
    return bool(getattr(own.config, "tie_word_embeddings", False)), bool((table == head).all())


def _left_out(model: Any, unused: list[str]) -> list[str]:
    """Of the unused weights those that stand inside the base model, its pooler and buffers of earlier releases not counted."""
    from ftcli.core.models.adapter_base import inner
    from ftcli.core.models.model import HEADS

    own = inner(model)
    start = f"{own.base_model_prefix}."
    parts = {name for name, _ in own.base_model.named_children()} if own.base_model is not own else set()
    return [
        name
        for name in unused
        if name.removeprefix(start).split(".")[0] in parts and not any(word in name for word in HEADS) and not name.endswith(BUFFERS)
    ]


def _changed(probe: Probe) -> list[str]:
    """Architecture keys whose values are not those that the weights were saved with, as "key: theirs → here"."""
    from ftcli.core.models.config import published

    theirs, here = published(probe.settings).to_dict(), probe.model.config.to_dict()
    return [
        f"{key}: {theirs[key]} → {here[key]}"
        for key in theirs
        if key in here and theirs[key] != here[key] and not any(part in key for part in HARMLESS) and not key.startswith("_")
    ]


def own_tokenizer(probe: Probe) -> Check:
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    source = probe.settings.model.name_or_path
    if source is None:
        _ = probe.config
        raise Missing("the weights are random, from --model-config")
    used = probe.tokenizer
    if (source, probe.settings.model.revision) == (probe.settings.tokenizer.path, probe.settings.tokenizer.revision):
        return passed(f"the tokenizer is the one of {source}")
    own = _tokenizer_of(source, probe)
    ids = sorted({*probe.rows.input_ids.values.tolist()})
    pairs = list(zip(ids, _tokens(used, ids), _tokens(own, ids), strict=True))
    wrong = [pair for pair in pairs if pair[1] is not None and pair[1] != pair[2]]
    evidence: dict[str, Any] = {"ids": len(ids), "different": len(wrong), "first": [list(map(str, pair)) for pair in wrong[:5]]}
    special = set(used.all_special_ids)
    if others := [pair for pair in wrong if pair[0] not in special and pair[2] is not None]:
        number, here, there = others[0]
        said = f"{len(others)} of the {len(ids)} ids in the first batch are different tokens for the model: {number} is {here!r} here and {there!r} in {source}"
        if len(others) > RENAMED * len(ids):
            return failed(said, f"Prepare the data with --tokenizer-path {source}, and give it here too.", **evidence)
        return warned(
            f"{said}; the others match",
            f"Correct if unused tokens were renamed and their weights are to be trained. Otherwise prepare the data with --tokenizer-path {source}.",
            **evidence,
        )
    if added := [pair for pair in wrong if pair[2] is None]:
        return noted(
            f"{len(added)} of the {len(ids)} ids in the first batch are not tokens of {source}, first {added[0][1]!r} ({added[0][0]}): new ones, which its"
            " weights have not learned",
            **evidence,
        )
    if wrong:
        return noted(f"special tokens differ from those in {source}: {wrong[0][1]!r} for {wrong[0][2]!r} (id {wrong[0][0]})", **evidence)
    return passed(f"the {len(ids)} distinct ids in the first batch are the same tokens in {source}", **evidence)


def _tokenizer_of(source: str, probe: Probe) -> Any:
    """The tokenizer in a folder of weights, or under the hub id of some."""
    from pathlib import Path

    from transformers import AutoTokenizer

    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt", "vocab.json")
    if Path(source).is_dir() and not any((Path(source) / name).is_file() for name in files):
        raise Missing(f"{source} is not a folder with its own tokenizer")
    if not Path(source).is_dir():
        try:
            _ = probe.config  # what the hub did not give is known by now: without a network asking it again takes 47 s
        except FtcliError as error:
            raise Missing(error.message) from error
    chosen = probe.settings
    try:
        return AutoTokenizer.from_pretrained(source, revision=chosen.model.revision, trust_remote_code=chosen.tokenizer.trust_remote_code)
    except Exception as error:
        raise Missing(f"the tokenizer in {source} does not load: {' '.join(str(error).split())[:100]}") from error


def _tokens(tokenizer: Any, ids: list[int]) -> list[str | None]:
    """None of an id that is none there: a slow tokenizer raises, or calls it unknown."""
    known = set(tokenizer.get_vocab().values())
    return [tokenizer.convert_ids_to_tokens(number) if number in known else None for number in ids]


CHECKS = (
    CheckKind("FT412", "model", "Weights loaded", loaded, ("store", "model")),
    CheckKind("FT417", "model", "The model's own tokenizer", own_tokenizer, ("tokenizer", "store")),
)
