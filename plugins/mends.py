"""What `verify --fix` may change for the built-in checks: keys of JSON files that lose nothing and that anybody can put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftcli.contracts import Edit
from ftcli.records import LABELLED, Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

TOKENIZER = "tokenizer_config.json"


def pad_token(probe: Probe, verdict: Check) -> list[Edit]:
    """An entry that nothing uses; for classification EOS, if no text ends with it. A new token would need a new row in the embedding: that is not safe."""
    from ftcli.core.tokenizer.spare_token import ends_with, spare_token
    from ftcli.core.verify.doubled_tokens import added
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    if verdict.status == "info":  # as it is, it does no harm in this run; another PAD would only ask for the data to be prepared again
        return []
    tokenizer = probe.tokenizer
    try:
        store = probe.store
    except (Missing, FtcliError):
        store = None
    try:
        rows = int(probe.config.get_text_config().vocab_size)
    except (Missing, FtcliError):
        rows = None
    name = spare_token(tokenizer, store, rows)
    if name is not None:
        number = tokenizer.get_vocab()[name]
        unused = "no role uses it" if store is None else "no role and no prepared row uses it"
        return [Edit("tokenizer", TOKENIZER, "pad_token", name, f"{name!r} ({number}) is in the vocabulary, and {unused}")]
    if tokenizer.pad_token_id is not None or tokenizer.eos_token_id is None or probe.task_name not in LABELLED:
        return []
    eos = tokenizer.eos_token_id
    found = added(tokenizer)
    ends = found is None or found[1][-1:] == [eos] or bool(probe.settings.tokenizer.add_eos)
    if ends or (store is not None and ends_with(store, eos)):
        return []
    shown = "no text ends with it" if store is not None else "no text ends with it unless --add-eos adds it"
    return [
        Edit("tokenizer", TOKENIZER, "pad_token", tokenizer.eos_token, f"no entry is free; for classification EOS will do, because {shown}")
    ]


def padding_side(probe: Probe, verdict: Check) -> list[Edit]:  # noqa: ARG001
    if verdict.status != "fail":  # left is right for generation, and harmless elsewhere
        return []
    return [Edit("tokenizer", TOKENIZER, "padding_side", "right", f"{verdict.evidence.get('model_type')} counts or pools from the left")]


def config_pad_id(probe: Probe, verdict: Check) -> list[Edit]:  # noqa: ARG001 - what a fix gets
    wanted = probe.tokenizer.pad_token_id
    if wanted is None:
        return []
    return [Edit("model", "config.json", "pad_token_id", wanted, "the tokenizer's PAD, by which a decoder finds the last token")]


def vocab_size(probe: Probe, verdict: Check) -> list[Edit]:
    """Only for random weights: trained ones have the rows they have."""
    if probe.settings.model.config is None or verdict.status != "fail":
        return []
    ids, rows = len(probe.tokenizer), int(probe.config.get_text_config().vocab_size)
    if ids <= rows:
        return []
    wanted = -(-ids // 64) * 64
    return [
        Edit("model", "config.json", "vocab_size", wanted, f"{ids:,} ids, rounded up to a multiple of 64; the weights are random anyway")
    ]


def truncation_side(probe: Probe, verdict: Check) -> list[Edit]:
    if verdict.status != "warn":
        return []
    cut = probe.store.manifest["metrics"]["rows_truncated"]
    return [Edit("tokenizer", TOKENIZER, "truncation_side", "right", f"{cut:,} rows of the data were cut there")]


def max_length(probe: Probe, verdict: Check) -> list[Edit]:
    """The model's positions, where the tokenizer names no length. Ids do not change by it."""
    from ftcli.core.models.layers import text_places

    limit = text_places(probe.config)
    if verdict.evidence.get("model_max_length") is not None or not limit:
        return []
    return [Edit("tokenizer", TOKENIZER, "model_max_length", limit, "the model has so many positions, and nothing warned of longer texts")]
