"""A folder's own tokenizer.json against the tokenizer that AutoTokenizer makes of the folder, which may be another one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ftcli.core.engines.adversarial import WORDS, mixed
from ftcli.core.engines.backend import stripped
from ftcli.core.engines.guard import guarded
from ftcli.core.engines.proof import Difference, differing_rows, to_array
from ftcli.core.engines.reference import BackendEncoder, row_of
from ftcli.core.tokenizer.without_torch import uncollected
from ftcli.core.verify.missing import Missing
from ftcli.errors import EngineError

PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor", "added_tokens")


AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")


def compare_own_file(tokenizer: Any, path: Path) -> tuple[list[str], Difference | None]:
    """The parts that the file words otherwise, and the shortest text of some 4,000 that gets other ids (special tokens included); a word that the file
    knows, if there is one.

    Args:
        tokenizer: a fast tokenizer that was loaded from the file's folder.
        path: tokenizer.json.

    Raises:
        EngineError: `tokenizers` cannot load the file.
        Missing: a text cannot be encoded, without an unknown token; says why.
    """
    live: Any = tokenizer.backend_tokenizer
    if _holds(path, live):
        return [], None
    with guarded(f"{path} cannot be loaded by tokenizers"):
        own: Any = Tokenizer.from_file(str(path))
    with stripped(own), stripped(live):
        parts = _unlike(own.to_str(), live.to_str())
        if not parts:
            return [], None
        texts = [*WORDS, *mixed(sorted(tokenizer.get_added_vocab()))]
        try:
            with guarded("the tokenizer refuses texts that tell it from its file"):
                by_file, by_class = (BackendEncoder(backend, 1, add_special_tokens=True).encode(to_array(texts)) for backend in (own, live))
        except EngineError as error:
            raise Missing(error.message) from error
    wrong = differing_rows(by_class, by_file).tolist()
    if not wrong:
        return parts, None
    unknown = own.token_to_id(tokenizer.unk_token or "")
    shortest = min(wrong, key=lambda number: (unknown in row_of(by_file, number).tolist(), not texts[number].isalpha(), len(texts[number])))
    return parts, Difference(texts[shortest], *(tuple(row_of(side, shortest).tolist()) for side in (by_class, by_file)))


def compare_sentencepiece(tokenizer: Any, path: Path, texts: Sequence[str]) -> tuple[str, list[str], list[str]] | None:
    """The shortest text whose pieces differ from those of the SentencePiece model itself, with the tokenizer's and the model's. Pieces and not ids are
    compared: several families number them otherwise (XLM-R and NLLB begin with ids of their own).

    Raises:
        Missing: the model cannot be read here; says why.
    """
    try:
        from sentencepiece import SentencePieceProcessor  # type: ignore[import-not-found]  # optional
    except ImportError:
        raise Missing(f"{path.name} cannot be compared: the package sentencepiece, which reads it, is not installed") from None
    try:
        model = SentencePieceProcessor(model_file=str(path))
    except Exception as error:  # whatever a file of another kind (tiktoken's has the same name) makes it raise
        raise Missing(f"{path.name} is not read by sentencepiece: {' '.join(str(error).split())[:200]}") from error
    special = set(tokenizer.all_special_tokens)
    wrong = []
    for text in texts:
        live = tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        own = [tokenizer.unk_token if model.piece_to_id(piece) == model.unk_id() else piece for piece in model.encode(text, out_type=str)]
        if live != own and not any(token in text for token in special):
            wrong.append((text, live, own))
    return min(wrong, key=lambda found: len(found[0]), default=None)


def _holds(path: Path, live: Any) -> bool:
    """Whether a file says of every part what the live backend says. Then its tokenizer is the same one and need not be made, nor asked for ids: FT106
    takes 1.3 in place of 2.5 s of CPU for Qwen3, imports included, on a loaded machine.
    """
    with uncollected():
        try:
            written = json.loads(path.read_bytes())
        except (ValueError, RecursionError):  # `tokenizers` says what is wrong with it
            return False
        if not isinstance(written, dict) or not isinstance(written.get("model"), dict):
            return False
        return _meant(written) == _meant(json.loads(live.to_str()))


def _meant(document: dict[str, Any]) -> dict[str, Any]:
    """The parts, without what BPE writes in several ways: a switch that is off, an affix that is empty, a merge as one text."""
    parts = {part: document.get(part) for part in PARTS}
    model = document["model"]
    if model.get("type") == "BPE":
        parts["model"] = model = {key: value for key, value in model.items() if value is not None and value is not False}
        for name in AFFIXES:
            if model.get(name) == "":
                del model[name]
        if any(isinstance(merge, str) for merge in model.get("merges", ())[:1]):
            model["merges"] = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    return parts


def _unlike(one: str, other: str) -> list[str]:
    """Names of the parts in which two serialised tokenizers differ. The model, which is most of the text and its last part, is compared as text:
    parsing two of Qwen3's takes 0.5 s.
    """
    if one == other:
        return []
    texts = (one, other)
    cuts = [text.find(',"model":{') for text in texts]
    if min(cuts) < 0:
        heads = [json.loads(text) for text in texts]
    else:
        heads = [{**json.loads(f"{text[:cut]}}}"), "model": text[cut:]} for text, cut in zip(texts, cuts, strict=True)]
    return [part for part in PARTS if heads[0].get(part) != heads[1].get(part)]
