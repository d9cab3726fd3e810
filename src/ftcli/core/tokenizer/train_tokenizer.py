"""Trains a fast tokenizer on a stream of texts and publishes it as a complete Hugging Face folder."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ftcli.core.publishing.output_location import check_folder
from ftcli.errors import PublishError, TokenizerError, UsageError

Kind = Literal["bpe", "wordpiece", "unigram"]

_SAMPLE, _SAMPLE_CHARACTERS = 2000, 20_000_000  # most that is kept of the stream, evenly spread, to measure the figures on
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""The split of Qwen2 and Qwen3: fast engines know it, and transformers rebuilds the tokenizer with exactly this one where the
folder also holds the config.json of a Qwen2 model."""
_MARK = "\ue000"  # begins a word while WordPiece is trained: BERT's normalizer removes private characters, so no text holds it


@dataclass(frozen=True, slots=True)
class _Family:
    """How one kind is built: `train` returns the backend without its post-processor; `roles` are the special tokens in id order."""

    train: Callable[[Iterator[str], int, Sequence[str]], Tokenizer]
    roles: dict[str, str]
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    single: str = ""
    pair: str = ""


def train_tokenizer(
    texts: Iterable[str],
    output: Path,
    kind: Kind,
    vocab_size: int,
    *,
    max_length: int | None = None,
    special_tokens: Sequence[str] = (),
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Train a tokenizer and publish `output` as a folder that `AutoTokenizer` loads unchanged; a kill leaves nothing half made.

    `bpe` is byte-level and gives every text back unchanged (Qwen-like: PAD and EOS, nothing is unknown, nothing is added);
    `wordpiece` is BERT-like ([CLS] … [SEP], case kept); `unigram` is T5-like (… </s>, NFKC).

    Args:
        texts: read once; the counts of their words are kept, not they.
        vocab_size: entries in all, special tokens included; fewer are reached where the text holds no more.
        max_length: what the tokenizer reports as `model_max_length`; None for no limit.
        special_tokens: further ones, for example of a chat template, after the family's own.
        on_progress: called with the number of texts read since its last call.

    Returns:
        rows_read, characters, vocab_size (reached), vocab_size_asked, special_tokens (role to token), seconds, rows_per_second,
        output, notes (what a user should know, in words); and on at most 2,000 texts that are not blank, spread over the stream,
        characters_per_token, tokens_per_row, max_tokens and unknown_share.

    Raises:
        UsageError: the vocabulary or length cannot be that small, a special token is given twice, or `output` holds something.
        TokenizerError: there is no text, or it has more characters than the vocabulary has room for.
        PublishError: the folder cannot be written.
    """
    began = time.monotonic()
    family = _FAMILIES[kind]
    specials = [*family.roles.values(), *special_tokens]
    _refuse(output, kind, vocab_size, max_length, specials)
    reader = _Reader(texts, on_progress)
    try:
        backend = family.train(iter(reader), vocab_size, specials)
    except Exception as error:
        if type(error) is not Exception:  # the library raises the bare class; everything else comes from the texts
            raise
        raise TokenizerError(f"{kind} cannot be trained with vocab_size {vocab_size:,}: {error}", _SMALL) from error
    if family.pair:
        ids = [(token, backend.token_to_id(token)) for token in family.roles.values() if token in family.pair]
        backend.post_processor = processors.TemplateProcessing(single=family.single, pair=family.pair, special_tokens=ids)
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    _publish(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            **family.roles,
            **({} if max_length is None else {"model_max_length": max_length}),
            extra_special_tokens=list(special_tokens),
            model_input_names=list(family.inputs),
            padding_side="right",
            truncation_side="right",
            clean_up_tokenization_spaces=False,
        ),
        backend,
        output,
    )
    reached, seconds = backend.get_vocab_size(), time.monotonic() - began
    return {
        "rows_read": reader.rows,
        "characters": reader.characters,
        "vocab_size": reached,
        "vocab_size_asked": vocab_size,
        **_figures(backend, family, reader.sample),
        "special_tokens": family.roles,
        "seconds": seconds,
        "rows_per_second": reader.rows / seconds,
        "output": str(output),
        "notes": _notes(kind, reached, vocab_size),
    }


_SMALL = "Raise --vocab-size, or choose bpe, whose 256 bytes cover every text."


def _refuse(output: Path, kind: Kind, vocab_size: int, max_length: int | None, specials: Sequence[str]) -> None:
    least = len(specials) + (256 if kind == "bpe" else 1)
    if vocab_size <= least:
        raise UsageError(f"vocab_size = {vocab_size}: {kind} has {least} entries before it learns any", f"Ask for more than {least}.")
    if max_length is not None and max_length < 3:
        raise UsageError(f"max_length = {max_length} leaves no room for text beside special tokens", "Leave it out for no limit.")
    twice = [token for n, token in enumerate(specials) if not token.strip() or token in specials[:n]]
    if twice:
        raise UsageError(f"the special token {twice[0]!r} is empty or given twice", "Name each special token once.")
    if output.resolve() == Path.cwd():
        raise UsageError(f"{output} is the current directory, but the tokenizer's folder is created as a whole", "Name a folder below it.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} already exists and is not an empty folder", "Choose another output folder, or remove this one.")
    check_folder(output.resolve().parent)


class _Reader:
    """Iterates over the texts, counts them, and keeps a sample of those that are not blank."""

    def __init__(self, texts: Iterable[str], on_progress: Callable[[int], None] | None) -> None:
        self.rows = self.characters = 0
        self.sample: list[str] = []
        self._texts, self._on_progress = texts, on_progress

    def __iter__(self) -> Iterator[str]:
        every, filled, reported = 1, 0, 0
        for text in self._texts:
            self.rows += 1
            self.characters += len(text)
            if text and not text.isspace():
                if filled % every == 0:
                    self.sample.append(text)
                filled += 1
            if len(self.sample) > _SAMPLE or (len(self.sample) > 1 and self.characters > _SAMPLE_CHARACTERS * every):
                self.sample, every = self.sample[::2], 2 * every
            if self._on_progress and self.rows - reported >= 1000:
                self._on_progress(self.rows - reported)
                reported = self.rows
            yield text
        if self._on_progress and self.rows > reported:
            self._on_progress(self.rows - reported)
        if not filled:
            raise TokenizerError(
                f"there is no text to learn from: {self.rows:,} rows, none with text", "Check the source and the name of its text column."
            )


def _bpe(texts: Iterator[str], vocab_size: int, specials: Sequence[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return backend


def _wordpiece(texts: Iterator[str], vocab_size: int, specials: Sequence[str]) -> Tokenizer:
    """BPE merges over words that begin with a mark, renamed: the library's own WordPiece trainer numbers the ## pieces in hash order,
    so that two runs on one text differ."""
    # Case is kept: lower-casing strips accents by decomposing, which takes Hangul syllables apart.
    normalizer, words = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Metaspace(_MARK, prepend_scheme="always", split=False)])
    learner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False))
    learned = learner.get_vocab()
    merged = sorted((token for token in learned if len(token) > 1), key=learned.__getitem__)
    letters = sorted(token for token in learned if len(token) == 1 and token != _MARK)
    pieces = [*specials, *letters, *(f"##{letter}" for letter in letters)]
    if len(pieces) > vocab_size:
        raise TokenizerError(
            f"vocab_size = {vocab_size:,}: the {len(letters):,} different characters of the text alone need {len(pieces):,} entries", _SMALL
        )
    pieces += (token[1:] if token[0] == _MARK else f"##{token}" for token in merged)
    vocabulary = {token: number for number, token in enumerate(itertools.islice(dict.fromkeys(pieces), vocab_size))}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, words, decoders.WordPiece()
    backend.add_special_tokens(list(specials))
    return backend


def _unigram(texts: Iterator[str], vocab_size: int, specials: Sequence[str]) -> Tokenizer:
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, special_tokens=list(specials), unk_token="<unk>", show_progress=False)  # noqa: S106
    backend.train_from_iterator(texts, trainer)
    # Rounded, because the library reads back the last digit of a longer score wrong and the saved tokenizer would differ.
    pieces = json.loads(backend.to_str())["model"]["vocab"]
    backend.model = models.Unigram([(piece, round(score, 6)) for piece, score in pieces], unk_id=specials.index("<unk>"))
    return backend


_FAMILIES: dict[Kind, _Family] = {
    "bpe": _Family(_bpe, {"pad_token": "<|pad|>", "eos_token": "<|endoftext|>"}),
    "wordpiece": _Family(
        _wordpiece,
        {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"},
        ("input_ids", "token_type_ids", "attention_mask"),
        "[CLS] $A [SEP]",
        "[CLS] $A [SEP] $B:1 [SEP]:1",
    ),
    "unigram": _Family(
        _unigram, {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}, single="$A </s>", pair="$A </s> $B </s>"
    ),
}


def _publish(tokenizer: PreTrainedTokenizerFast, backend: Tokenizer, output: Path) -> None:
    """Write the folder beside `output`, prove that it loads as what was trained, and rename it."""
    place = output.resolve()  # a link to an empty folder stays one
    attempt = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(attempt, ignore_errors=True)
        attempt.mkdir(parents=True)
        tokenizer.save_pretrained(attempt)
        loaded = AutoTokenizer.from_pretrained(attempt, local_files_only=True)
        if json.loads(loaded.backend_tokenizer.to_str()) != json.loads(backend.to_str()):
            raise TokenizerError(
                f"{output} would not load as the tokenizer that was trained", "Report it with the version of transformers."
            )
        for path in attempt.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        attempt.replace(place)
    except OSError as error:
        hint = "Free space, or choose a folder that you may write to."
        raise PublishError(f"the tokenizer cannot be written to {output}: {error.strerror or error}", hint) from error
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def _figures(backend: Tokenizer, family: _Family, sample: Sequence[str]) -> dict[str, float]:
    unknown = backend.token_to_id(family.roles.get("unk_token", ""))
    rows = [row.ids for row in backend.encode_batch(sample, add_special_tokens=False)]
    tokens = max(1, sum(map(len, rows)))
    added = backend.num_special_tokens_to_add(False)
    return {
        "characters_per_token": sum(map(len, sample)) / tokens,
        "tokens_per_row": tokens / len(rows) + added,
        "max_tokens": max(map(len, rows)) + added,
        "unknown_share": sum(token == unknown for row in rows for token in row) / tokens,
    }


def _notes(kind: Kind, reached: int, asked: int) -> list[str]:
    notes = []
    if reached < asked:
        notes.append(f"the vocabulary has {reached:,} of the {asked:,} entries asked for: the text does not yield more")
    if kind == "unigram":
        notes.append("training unigram again gives different ids and slightly different scores: the library's summation order varies")
    return notes
