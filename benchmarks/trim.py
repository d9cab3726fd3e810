"""A byte-level BPE tokenizer cut down to what some texts need, so that a small machine need not train an embedding of 150,000 rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


def trim(base: Path, folder: Path, texts: Sequence[str]) -> int:
    """Write the tokenizer of `base` with the tokens of `texts`, those that they are merged from, and all single bytes.

    The texts become the same pieces as before under new ids: what is merged on the way to a token is merged into it, and each token has one merge. Other
    texts may become more and shorter pieces. Of the added tokens padding and end stay.

    Args:
        base: a tokenizer folder with a byte-level BPE in tokenizer.json.

    Returns:
        Tokens that it has.
    """
    from tokenizers import Tokenizer

    document = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    roles = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    kept_roles = {name: roles[name] for name in ("pad_token", "eos_token")}
    vocabulary, merges = document["model"]["vocab"], document["model"]["merges"]
    pieces = {"".join(pair): pair for pair in merges}
    encoded = Tokenizer.from_file(str(base / "tokenizer.json")).encode_batch(list(texts), add_special_tokens=False)
    left = {piece for each in encoded for piece in each.tokens if piece in vocabulary}
    needed = {piece for piece in vocabulary if piece not in pieces}
    while left:
        needed |= left
        left = {part for piece in left for part in pieces.get(piece, ())} - needed
    order = sorted(needed, key=vocabulary.__getitem__)
    document["model"]["vocab"] = {piece: number for number, piece in enumerate(order)}
    document["model"]["merges"] = [pair for pair in merges if "".join(pair) in needed]
    added = [token for token in document["added_tokens"] if token["content"] in kept_roles.values()]
    document["added_tokens"] = [{**token, "id": len(order) + place} for place, token in enumerate(added)]
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    configuration = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072, **kept_roles}
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration), encoding="utf-8")
    return len(order) + len(added)
