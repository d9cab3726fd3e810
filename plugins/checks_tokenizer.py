"""Checks of the tokenizer: fast or slow, PAD, EOS, padding side, what is added to a text, the folder's own tokenizer.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import LABELLED, Check

from . import mends

if TYPE_CHECKING:
    from pathlib import Path

    from ftcli.core.verify.probe import Probe

SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
RIGHT_ONLY = frozenset(
    {
        "albert",
        "bert",
        "big_bird",
        "biogpt",
        "camembert",
        "convbert",
        "ctrl",
        "data2vec-text",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "flaubert",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "ibert",
        "layoutlm",
        "longformer",
        "megatron-bert",
        "mobilebert",
        "modernbert",
        "mpnet",
        "openai-gpt",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roformer",
        "xlm",
        "xlm-roberta",
    }
)
"""Model families whose logits change with left padding (by 0.2 to 5.4 standard deviations, measured), because positions are counted from the left
or the first token is pooled. Decoders with rotary positions, BLOOM, MPT and OPT change by rounding only."""


def fast(probe: Probe) -> Check:
    from ftcli.core.tokenizer.conversion import convert
    from ftcli.core.verify.verdict import passed, warned

    tokenizer = probe.tokenizer
    kind = type(tokenizer).__name__
    evidence: dict[str, Any] = {"class": kind, "vocabulary": len(tokenizer)}
    if tokenizer.is_fast:
        return passed(f"{kind} is a fast tokenizer with {len(tokenizer):,} ids", **evidence)
    path = probe.settings.tokenizer.path or ""
    converted = convert(tokenizer, path, _texts(probe))
    words = f"{kind} is a slow tokenizer: pure Python, one core, 10 to 100 times slower"
    evidence |= {"converts": converted.how, "compared": converted.compared, "why": converted.why}
    if converted.how:
        return warned(
            f"{words}; it can be made fast: {converted.how} gives the same ids on {converted.compared:,} texts{', ' if converted.why else ''}{converted.why}",
            converted.words(path),
            **evidence,
        )
    return warned(
        f"{words}; it cannot be converted: {converted.why}",
        "Train a fast one on your text: ftcli train-tokenizer SOURCE --output DIR. A pretrained model needs its own tokenizer: use a folder that has its tokenizer.json.",
        **evidence,
    )


def _texts(probe: Probe) -> list[str]:
    from ftcli.core.verify.probe import Missing

    try:
        return probe.texts.texts
    except Missing:
        return []


def pad(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import noted, passed

    tokenizer = probe.tokenizer
    if probe.pad is not None:
        return passed(f"PAD is {tokenizer.pad_token!r} ({probe.pad})", token=tokenizer.pad_token, id=probe.pad)
    return noted(
        "the tokenizer has no PAD token: ftcli masks padding by position and needs none; other trainers could only make packed batches, so for them add a "
        "separate pad_token (not EOS, which would then not be learned) to tokenizer_config.json"
    )


def pad_is_not_eos(probe: Probe) -> Check:
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import noted, passed, warned

    tokenizer = probe.tokenizer
    pad_id, eos_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    if pad_id is None or eos_id is None:
        raise Missing("the tokenizer has no " + ("PAD" if pad_id is None else "EOS") + " token")
    evidence = {"pad": tokenizer.pad_token, "pad_id": pad_id, "eos": tokenizer.eos_token, "eos_id": eos_id}
    if pad_id != eos_id:
        return passed(f"PAD ({pad_id}) is not EOS ({eos_id})", **evidence)
    if probe.task_name in LABELLED:
        return noted("PAD is EOS: harmless for classification as long as no text ends with it", **evidence)
    if _packed(probe):
        return noted("PAD is EOS: packed rows have no padding between texts, so that EOS is learned", **evidence)
    return warned(
        "PAD is EOS: collators that mask labels by the PAD id never teach the model to stop (P(EOS) 9e-6 instead of 0.993, with a perfect loss)",
        "ftcli masks by position and is not affected; for other trainers add a separate pad_token to tokenizer_config.json.",
        **evidence,
    )


def _packed(probe: Probe) -> bool:
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    try:
        return probe.train_split.packed
    except (Missing, FtcliError):  # FT201 says what is wrong with the data
        return probe.settings.packing.strategy not in {None, "none"}


def padding_side(probe: Probe) -> Check:
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed

    side = probe.tokenizer.padding_side
    if side == "right":
        return passed("padding on the right", side=side)
    try:
        family = probe.config.model_type
    except Missing:
        return noted("padding on the left: correct for generation, harmless for decoders with rotary positions", side=side)
    if family in RIGHT_ONLY:
        return failed(
            f"the tokenizer pads on the left, and {family} counts or pools from the left: wherever they are used together, the same text gets different "
            "logits depending on its batch (ftcli train itself pads on the right)",
            'Set "padding_side": "right" in tokenizer_config.json.',
            side=side,
            model_type=family,
        )
    return noted(
        f"padding on the left: harmless for {family} as far as is known, and ftcli train pads on the right", side=side, model_type=family
    )


def additions(probe: Probe) -> Check:
    from ftcli.core.verify.doubled_tokens import added
    from ftcli.core.verify.verdict import noted, warned

    tokenizer = probe.tokenizer
    found = added(tokenizer)
    if found is None:
        return noted("special tokens change the ids of the text itself")
    before, after = found
    words = [f"{' '.join(tokenizer.convert_ids_to_tokens(ids))} {where}" for ids, where in ((before, "before"), (after, "behind")) if ids]
    eos = (
        ""
        if tokenizer.eos_token_id is None or tokenizer.eos_token_id in after
        else " (no EOS: ftcli tokenize adds it for pretrain and plain prompts with completions, --add-eos otherwise)"
    )
    if before and (told := _left_out(probe, before)):
        token = " ".join(tokenizer.convert_ids_to_tokens(before))
        lacking = f"the tokenizer puts {token} before every text, but none of {told:,} prepared texts has it"
        if probe.settings.model.name_or_path is None:
            return noted(f"{lacking}: random weights do not need it", before=before, behind=after, texts=told)
        return warned(
            f"{lacking}: the pretrained weights expect it, and a head may pool that very token",
            "Prepare the data again without tokenizer.add_special_tokens = false.",
            before=before,
            behind=after,
            texts=told,
        )
    return noted(f"added to every text: {' and '.join(words) or 'nothing'}{eos}", before=before, behind=after)


def _left_out(probe: Probe, before: list[int]) -> int:
    """How many prepared texts were looked at, if none begins with `before`; else 0. What a conversation begins with its template says."""
    from ftcli.core.storage.documents import documents
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    try:
        if probe.store.manifest.get("task") == "sft":
            return 0
        ids = documents(probe.train_split, 1_000_000).ids
    except (Missing, FtcliError):  # FT201 says what is wrong with the data
        return 0
    begins = ids.offsets[:-1][ids.lengths > 0]
    return 0 if (ids.values[begins] == before[0]).any() else len(begins)


def own_file(probe: Probe) -> Check:
    from dataclasses import asdict
    from pathlib import Path

    from ftcli.core.tokenizer.facts import remembered
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.tokenizer_file import compare_own_file
    from ftcli.core.verify.verdict import passed, warned

    tokenizer = probe.tokenizer
    folder = Path(probe.settings.tokenizer.path or "")
    path = folder / "tokenizer.json"
    if not path.is_file() and (model := next((folder / name for name in SENTENCEPIECE if (folder / name).is_file()), None)):
        return _own_model(probe, model)
    if not tokenizer.is_fast or not path.is_file():
        raise Missing("the folder has no tokenizer.json in use")

    def compare() -> dict[str, Any]:
        parts, difference = compare_own_file(tokenizer, path)
        return {"parts": parts, "difference": difference and asdict(difference)}

    answer = remembered(probe.context, "own-file", compare)
    parts, difference = answer["parts"], answer["difference"]
    if difference is None:
        words = f" ({', '.join(parts)} written differently, the same ids on 4,000 texts)" if parts else ""
        return passed(f"AutoTokenizer agrees with tokenizer.json{words}", parts=parts)
    text, by_class, by_file = difference["text"], list(difference["reference"]), list(difference["engine"])
    return warned(
        f"AutoTokenizer ({type(tokenizer).__name__}) gives different ids from the folder's tokenizer.json: {text!r} becomes {by_class[:12]}, "
        f"not {by_file[:12]} ({', '.join(parts)} differ)",
        "ftcli follows AutoTokenizer, as training with transformers does. Programs that read tokenizer.json directly will give the model different "
        "ids: save the folder again with AutoTokenizer's save_pretrained, or set tokenizer_class to PreTrainedTokenizerFast in "
        "tokenizer_config.json, whichever the model was trained with.",
        parts=parts,
        text=text,
        auto_tokenizer=by_class,
        tokenizer_json=by_file,
    )


def _own_model(probe: Probe, path: Path) -> Check:
    """A folder with a SentencePiece model alone: its pieces against the tokenizer's."""
    from ftcli.core.engines.adversarial import WORDS
    from ftcli.core.verify.tokenizer_file import compare_sentencepiece
    from ftcli.core.verify.verdict import passed, warned

    texts = [*WORDS, *_texts(probe)[:200]]
    difference = compare_sentencepiece(probe.tokenizer, path, texts)
    if difference is None:
        return passed(f"AutoTokenizer agrees with {path.name} on {len(texts):,} texts", texts=len(texts))
    text, live, own = difference
    return warned(
        f"AutoTokenizer ({type(probe.tokenizer).__name__}) tokenizes differently from the folder's {path.name}: {text!r} becomes {live[:12]}, not {own[:12]}",
        "ftcli follows AutoTokenizer, as training with transformers does. Set tokenizer_class to the one that the model was trained with.",
        text=text,
        auto_tokenizer=live,
        sentencepiece=own,
    )


CHECKS = (
    CheckKind("FT101", "tokenizer", "Fast tokenizer", fast, ("tokenizer",)),
    CheckKind("FT102", "tokenizer", "PAD token", pad, ("tokenizer",), mend=mends.pad_token),
    CheckKind("FT103", "tokenizer", "PAD is not EOS", pad_is_not_eos, ("tokenizer",), "warn", mend=mends.pad_token),
    CheckKind("FT104", "tokenizer", "Padding side", padding_side, ("tokenizer",), mend=mends.padding_side),
    CheckKind("FT105", "tokenizer", "Special tokens", additions, ("tokenizer",), "warn"),
    CheckKind("FT106", "tokenizer", "tokenizer.json", own_file, ("tokenizer",), "warn"),
)
