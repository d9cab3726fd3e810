"""A tokenizer of Llama-3's kind, made from the vocabulary and merges of another byte-level BPE."""

from __future__ import annotations

import json
from pathlib import Path

PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


def build(base: Path, folder: Path) -> Path:
    """Llama-3's split pattern, `ignore_merges`, no normalizer, and a BOS that the post-processor puts first.

    Args:
        base: a tokenizer folder with a byte-level BPE in tokenizer.json.
    """
    document = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    model = document["model"]
    model["ignore_merges"] = True
    taken = [*model["vocab"].values(), *(token["id"] for token in document["added_tokens"])]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    ids = {content: max(taken) + 1 + place for place, content in enumerate((BOS, EOS))}
    document["added_tokens"] += [{"id": number, "content": content, **flags} for content, number in ids.items()]
    document["normalizer"] = None
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    first, second = {"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, second],
        "pair": [first, second, {"SpecialToken": {"id": BOS, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [ids[BOS]], "tokens": [BOS]}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    configuration = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "model_max_length": 131072}
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration), encoding="utf-8")
    return folder
