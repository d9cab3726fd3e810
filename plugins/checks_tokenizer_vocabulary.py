"""Checks of what a tokenizer's folder declares: BOS and EOS, truncation side, ids, model_max_length, code of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import LABELLED, Check

from . import mends

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

ROLES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
SHOWN = 5
OWN_CODE = ("tokenizer_config.json", "config.json", "processor_config.json")
MOST_BYTES = 64 << 20
UNMADE = 0.05
"""Share of a BPE vocabulary that its merges do not make from which it warns. 52 real ones have 0 to 3 % (one whose first merge is lost), with a tenth of
the merges cut off 7 to 13 %, with all of them shuffled 11 to 81 %."""
RARE = 0.01
"""From which it is noted."""


def identity(probe: Probe) -> Check:
    from ftcli.core.verify.ends import configured
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    tokenizer = probe.tokenizer
    ids = {role: getattr(tokenizer, f"{role}_token_id", None) for role in ROLES}
    tokens = {role: getattr(tokenizer, f"{role}_token", None) for role in ROLES}
    evidence: dict[str, Any] = {"ids": {role: found for role, found in ids.items() if found is not None}}
    split = bool(getattr(tokenizer, "split_special_tokens", False))
    for role in ("bos", "eos", "pad"):
        token, found = tokens[role], ids[role]
        if token is None:
            continue
        key = f'"{role}_token" of tokenizer_config.json'
        if found is None or (found == ids["unk"] and token != tokens["unk"]):
            return failed(
                f"{role.upper()} is {token!r}, which is not in the vocabulary", f"Set {key} to a token of the vocabulary.", **evidence
            )
        alone = tokenizer(token, add_special_tokens=False, verbose=False)["input_ids"]
        if alone != [found] and not split:
            return warned(
                f"{role.upper()} is {token!r} ({found}), but its text becomes {alone[:8]}: templates that write it as text do not produce the token",
                f"Mark {token!r} as special among the added tokens of tokenizer.json.",
                **evidence,
                text_ids=alone[:8],
            )
    same = [
        f"{role.upper()} is {other.upper()}" for role, other in (("pad", "unk"), ("pad", "bos"), ("bos", "eos")) if _same(ids, role, other)
    ]
    ends = configured(probe)
    if ids["eos"] is not None and ends and ids["eos"] not in ends:
        same.append(
            f"eos_token_id of the model's configuration is {', '.join(map(str, ends))}, that of the tokenizer {tokens['eos']!r} ({ids['eos']})"
        )
        evidence["model_eos"] = ends
    words = ", ".join(
        f"{role.upper()} {tokens[role]!r} ({ids[role]})" if ids[role] is not None else f"no {role.upper()}" for role in ("bos", "eos")
    )
    if ids["eos"] is None and probe.task_name not in LABELLED:
        same.append("without an EOS a language model does not learn where a text ends")
    return noted(f"{words}; {'; '.join(same)}", **evidence) if same else passed(words, **evidence)


def _same(ids: dict[str, Any], one: str, other: str) -> bool:
    return ids[one] is not None and ids[one] == ids[other]


def truncation_side(probe: Probe) -> Check:
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import noted, passed, warned
    from ftcli.errors import FtcliError

    side = getattr(probe.tokenizer, "truncation_side", "right")
    if side == "right":
        return passed("long texts are cut on the right", side=side)
    try:
        manifest = probe.store.manifest
        cut, strategy = int(manifest.get("metrics", {}).get("rows_truncated") or 0), manifest.get("policy", {}).get("truncation")
    except (Missing, FtcliError):  # FT201 says what is wrong with the data
        cut, strategy = 0, None
    if cut and strategy == "keep_start":
        return warned(
            f"the tokenizer cuts long texts on the left (it keeps their end), but {cut:,} rows of the data were cut on the right: a program that "
            "truncates with this tokenizer gives the model a different part of a long text than it was trained on",
            'Prepare the data with --truncation-strategy keep_end, or set "truncation_side": "right" in tokenizer_config.json.',
            side=side,
            rows_truncated=cut,
        )
    return noted(
        "the tokenizer cuts long texts on the left; ftcli uses --truncation-strategy (default: keep_start)",
        side=side,
        rows_truncated=cut,
    )


def ids(probe: Probe) -> Check:
    from ftcli.core.tokenizer.facts import ids_of
    from ftcli.core.tokenizer.round_trip import MOSTLY
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    found = ids_of(probe)
    kind, learned, late, example = found.order
    lost = len(found.unmade) / max(1, found.asked)
    evidence: dict[str, Any] = {
        "length": found.size,
        "largest_id": found.rows - 1,
        "holes": len(found.holes),
        "first_holes": found.holes[:SHOWN],
        "shared": {str(number): tokens[:SHOWN] for number, tokens in list(found.shared.items())[:SHOWN]},
        "asked": found.asked,
        "unmade": len(found.unmade),
        "examples": found.unmade[:SHOWN],
        "ordered_by": kind,
        "ordered": learned,
        "out_of_order": late,
    }
    words = ""
    if found.unmade:
        token, pieces = found.unmade[0]
        words = f"{lost:.1%} of {found.asked:,} tokens that were tried never come out of a text: {token!r} becomes {', '.join(map(repr, pieces[:SHOWN])) or 'nothing'}"
    if lost > UNMADE:
        return (failed if lost > MOSTLY else warned)(
            f"{words}. The merges do not belong to the vocabulary: texts become more and other tokens than a model that was trained with it knows",
            "Take tokenizer.json (or merges.txt) from the model's own repository again: merges are missing, or are not in their order.",
            **evidence,
        )
    if found.order.broken:
        return warned(
            f"{late / learned:.1%} of {learned:,} {kind}, as no training leaves them: {example}. Texts become other tokens than a model that was "
            "trained with the right ones knows",
            f"Take {'tokenizer.json (or merges.txt)' if kind.startswith('merges') else 'tokenizer.json'} from the model's own repository again.",
            **evidence,
        )
    if found.rows > found.size:
        return warned(
            f"the largest id is {found.rows - 1:,}, but len(tokenizer) is {found.size:,}: an embedding of that many rows, as "
            "resize_token_embeddings(len(tokenizer)) makes it, has no vector for the last ids",
            f"Give the model at least {found.rows:,} rows: --config-overrides vocab_size={found.rows} from scratch.",
            **evidence,
        )
    if found.shared:
        number, tokens = next(iter(found.shared.items()))
        return warned(
            f"{len(found.shared):,} ids are shared by several tokens, first {number}: {', '.join(map(repr, tokens[:SHOWN]))}",
            "Give every token a unique id in tokenizer.json.",
            **evidence,
        )
    if found.holes:
        return noted(
            f"{len(found.holes):,} of {found.rows:,} ids belong to no token, first {', '.join(map(str, found.holes[:SHOWN]))}: rows of the embedding "
            "that are never trained",
            **evidence,
        )
    one = f"ids 0 to {found.rows - 1:,}, one token each"
    return noted(f"{one}; {words}", **evidence) if lost > RARE else passed(one, **evidence)


def max_length(probe: Probe) -> Check:
    from ftcli.core.tokenizer.limit import NO_LIMIT, length_limit
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import noted, passed, warned
    from ftcli.errors import FtcliError

    limit = length_limit(probe.tokenizer)
    try:
        longest, what = int(probe.train_split.lengths.max(initial=0)), "the longest row of the data"
    except (Missing, FtcliError):  # FT201 says what is wrong with the data
        longest, what = probe.settings.packing.max_length or 0, "--max-length"
    evidence = {"model_max_length": None if limit >= NO_LIMIT else limit, "longest": longest}
    if limit >= NO_LIMIT:
        return noted("the tokenizer names no model_max_length: nothing warns about texts too long for the model", **evidence)
    if longest <= limit:
        return passed(f"model_max_length is {limit:,}" + (f", {what} has {longest:,} tokens" if longest else ""), **evidence)
    positions = _positions(probe)
    if positions is not None and positions >= longest:
        room = "any number of" if positions == math.inf else f"{positions:,}"
        return noted(
            f"model_max_length is {limit:,}, {what} has {longest:,} tokens; the model has {room} positions, so it fits",
            **evidence,
            positions=None if positions == math.inf else positions,
        )
    return warned(
        f"model_max_length is {limit:,}, but {what} has {longest:,} tokens: the model may have no positions for them, and programs that truncate with "
        "this tokenizer will give it less",
        f'Prepare the data with --max-length {limit}, or set "model_max_length" in tokenizer_config.json to what the model supports.',
        **evidence,
    )


def _positions(probe: Probe) -> float | None:
    """Infinite where the model has no limit; None where that is not known."""
    from ftcli.core.models.layers import text_places, unlimited
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    try:
        return math.inf if unlimited(probe.config) else text_places(probe.config)
    except (Missing, FtcliError):  # the first check of the model says what is wrong with it
        return None


def own_code(probe: Probe) -> Check:
    """Looks at files only, so that it says what is there even where the tokenizer cannot be loaded without its code."""
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import noted, passed

    settings = probe.settings
    named = [settings.tokenizer.path, settings.model.name_or_path, settings.model.config]
    places = [Path(str(place)) for place in named if place is not None and Path(str(place)).exists()]
    if not places:
        raise Missing("there is no tokenizer folder" if settings.tokenizer.path else "no --tokenizer-path")
    found = _auto_maps(places)
    if not found:
        return passed(
            "neither tokenizer nor configuration brings its own Python code", trust_remote_code=settings.tokenizer.trust_remote_code
        )
    names = ", ".join(f"{kind} = {target} ({file.name})" for file, kind, target in found[:SHOWN])
    evidence = {
        "auto_map": [[str(file), kind, target] for file, kind, target in found],
        "trust_remote_code": settings.tokenizer.trust_remote_code,
    }
    if settings.tokenizer.trust_remote_code:
        return noted(f"Python code from the folder may run, because of --trust-remote-code: {names}", **evidence)
    return noted(
        f"the folder brings its own Python code, which is not run; transformers' own classes are used instead: {names}. If these give different ids "
        "or logits from those the model was trained with, read the code and add --trust-remote-code",
        **evidence,
    )


def _auto_maps(places: Sequence[Path]) -> list[tuple[Path, str, str]]:
    """Entries of "auto_map" as (file, class of transformers, class of the folder), of folders or JSON files. Files that cannot be read have none."""
    found = []
    for place in dict.fromkeys(places):
        for file in [place / name for name in OWN_CODE] if place.is_dir() else [place]:
            try:
                if not file.is_file() or file.stat().st_size > MOST_BYTES:
                    continue
                content = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):  # the check of the part itself says so
                continue
            entries = content.get("auto_map") if isinstance(content, dict) else None
            if isinstance(entries, (list, tuple, str)):  # written by transformers before 4.9
                entries = {"AutoTokenizer": entries}
            for kind, target in entries.items() if isinstance(entries, dict) else ():
                names = target if isinstance(target, (list, tuple)) else [target]
                found.append((file, str(kind), ", ".join(str(name) for name in names if name)))
    return found


CHECKS = (
    CheckKind("FT107", "tokenizer", "BOS and EOS", identity, ("tokenizer",)),
    CheckKind("FT108", "tokenizer", "Truncation side", truncation_side, ("tokenizer",), "warn", mend=mends.truncation_side),
    CheckKind("FT109", "tokenizer", "Ids", ids, ("tokenizer",)),
    CheckKind("FT110", "tokenizer", "model_max_length", max_length, ("tokenizer",), "warn", mend=mends.max_length),
    CheckKind("FT111", "tokenizer", "Code of its own", own_code, (), "info"),
)
