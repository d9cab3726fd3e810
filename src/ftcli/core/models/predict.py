"""A quick look at a trained model: labels with probabilities, or what it goes on to say. Texts go in by length, answers come out in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from ftcli.core.engines.backend import strip
from ftcli.core.models.adapter_base import ADAPTER_CONFIG, refuse_absent, unavailable
from ftcli.core.models.as_prepared import bare, encode
from ftcli.core.models.layers import places
from ftcli.core.models.merge import load_adapted, tokenizer_of
from ftcli.core.models.model import OWN_CODE, embedding_rows, refuse_pointers
from ftcli.core.models.predict_inputs import Asked
from ftcli.core.prepare.policy import LengthPolicy
from ftcli.core.tokenizer.limit import NO_LIMIT, length_limit
from ftcli.core.tokenizer.template_habits import Habits
from ftcli.errors import FtcliError, ModelError, UsageError

MOST_LABELS = 5
"""Labels of an answer where nothing else is said."""
THRESHOLD = 0.5
"""Probability from which a label of several holds."""
TYPES = "token_type_ids"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can be asked, with its tokenizer."""

    model: Any
    tokenizer: Any
    classifies: bool

    @property
    def several(self) -> bool:
        """Whether a text may have any number of labels."""
        return bool(self.model.config.problem_type == "multi_label_classification")


def load(name: str, *, trust: bool = False) -> Loaded:
    """A model folder, an adapter folder or a hub id.

    Args:
        trust: run Python code that comes with it.

    Raises:
        ModelError: there is none, or it neither classifies nor goes on with a text.
        MissingExtraError: it is an adapter, and peft is not installed.
    """
    refuse_pointers(name)
    refuse_absent(name)
    try:
        if (Path(name) / ADAPTER_CONFIG).is_file():
            model, tokenizer = load_adapted(Path(name), trust=trust), tokenizer_of(Path(name), trust=trust)
            classifies = str(next(iter(model.peft_config.values())).task_type).endswith("SEQ_CLS")
        else:
            config = AutoConfig.from_pretrained(name, trust_remote_code=trust)
            kinds = config.architectures or [""]
            classifies = kinds[0].endswith("ForSequenceClassification")
            if not classifies and not _speaks(config, kinds[0]):
                raise ModelError(f"{name} is a {kinds[0] or 'model without a head'}", "predict takes classifiers and language models.")
            family = AutoModelForSequenceClassification if classifies else AutoModelForCausalLM
            model = family.from_pretrained(name, dtype=torch.float32, use_safetensors=True, trust_remote_code=trust)
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust)
    except FtcliError:
        raise
    except Exception as error:  # a dozen kinds, all caused by what lies there
        raise unavailable(name, error) or ModelError(
            f"{name} cannot be loaded: {' '.join(str(error).split())[:300]}",
            OWN_CODE if "trust_remote_code" in str(error) else "Give the output directory of a run, or another model folder.",
        ) from error
    strip(tokenizer)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    text = model.config.get_text_config()
    if text.pad_token_id not in range(embedding_rows(model)):  # Llama's says -1
        text.pad_token_id = tokenizer.pad_token_id
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Loaded(model.to(device).eval(), tokenizer, classifies)


def _speaks(config: Any, architecture: str) -> bool:
    """Whether it is a language model: by its name, or one that sees as well (Gemma 3), which transformers loads as one."""
    sees = architecture.endswith("ForConditionalGeneration") and not config.is_encoder_decoder
    return architecture.endswith(("ForCausalLM", "LMHeadModel")) or (sees and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING)


def predict(
    loaded: Loaded,
    asked: Sequence[Asked],
    *,
    batch_size: int,
    max_new_tokens: int,
    threshold: float = THRESHOLD,
    top_k: int = MOST_LABELS,
    chat: bool = True,
    policy: LengthPolicy | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """An answer for each text, in their order: `labels` with probabilities, or `answer`.

    Args:
        threshold: probability from which a label holds, where a text may have any number of them.
        top_k: labels of an answer at most, the likeliest first; 0: all.
        chat: put a text into the tokenizer's chat template, if it has one, as what a user says (language models).
        policy: how the texts that the model learned were encoded; None: as its tokenizer does it. Of a language model, only what stands before them.

    Raises:
        UsageError: nothing is asked, or a text is empty.
        ModelError: the tokenizer has ids that the model does not know, or the model's outputs are NaN or infinite.
    """
    if not asked:
        raise UsageError("no text: nothing to predict", "Example: ftcli predict runs/first 'a text', or --input FILE.jsonl.")
    prompts = [_prompt(loaded, one, number, chat=chat) for number, one in enumerate(asked, 1)]
    room = _room(loaded) - (0 if loaded.classifies else max_new_tokens)
    if room < 1:
        raise UsageError(f"max_new_tokens = {max_new_tokens} leaves no room for the text", "Lower --max-new-tokens.")
    types: list[list[int]] | None
    if loaded.classifies and policy is not None and (policy.pair is not None) == isinstance(asked[0], tuple):
        rows, types = encode(policy, loaded.tokenizer, _sides(asked), room)
    elif loaded.classifies:  # the special tokens at the end survive truncation
        encoded = loaded.tokenizer(*_sides(asked), truncation=room < NO_LIMIT, max_length=room)
        rows, types = encoded["input_ids"], encoded.get(TYPES) if isinstance(asked[0], tuple) else None
    else:
        rows, types = [_begun(loaded, text, policy, special=special)[-room:] for text, special in prompts], None
    largest, known = max((max(row, default=0) for row in rows), default=0), embedding_rows(loaded.model)
    if largest >= known:
        raise ModelError(
            f"the tokenizer gives the id {largest:,}, the model knows {known:,}", "The folder's tokenizer belongs to a different model."
        )
    answers: list[dict[str, Any]] = [{}] * len(rows)
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = [rows[row] for row in chosen]
            of_batch = None if types is None else [types[row] for row in chosen]
            found = _labels(loaded, batch, of_batch, threshold, top_k) if loaded.classifies else _answers(loaded, batch, max_new_tokens)
            for row, answer in zip(chosen, found, strict=True):
                answers[row] = answer
            on_progress(len(chosen))
    return answers


def _sides(asked: Sequence[Asked]) -> list[list[str]]:
    """The texts of a classifier, or its first and its second ones."""
    if not any(isinstance(one, tuple) for one in asked):
        return [[str(one) for one in asked]]
    alone = next((number for number, one in enumerate(asked, 1) if not isinstance(one, tuple)), None)
    if alone is not None:
        raise UsageError(f"text {alone} has no second text, but others do", "Predict them separately.")
    return [[one[side] for one in asked if isinstance(one, tuple)] for side in (0, 1)]


def _prompt(loaded: Loaded, asked: Asked, number: int, *, chat: bool) -> tuple[str, bool]:
    """The text to encode, and whether the tokenizer adds its special tokens."""
    if isinstance(asked, tuple):
        if not loaded.classifies:
            raise UsageError(f"row {number} holds two texts, but a language model continues a single text", "Leave out the second.")
        if not any(map(str.strip, asked)):
            raise UsageError(f"both texts of row {number} are empty", "Leave it out.")
        return asked[0], True
    if isinstance(asked, str) and not asked.strip():
        raise UsageError(f"text {number} is empty", "Leave it out.")
    template = getattr(loaded.tokenizer, "chat_template", None)
    if isinstance(asked, str) and (loaded.classifies or not template or not chat):
        return asked, True
    if not template or loaded.classifies:
        raise UsageError(
            f"row {number} holds messages, and {'a classifier takes texts' if loaded.classifies else 'there is no chat template'}",
            "Give texts.",
        )
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked.question
    tools = None if isinstance(asked, str) else asked.tools
    messages = Habits(lambda chat, offered: loaded.tokenizer.apply_chat_template(chat, tools=offered, tokenize=False)).suited(messages)
    try:
        text = loaded.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        return str(text), False
    except Exception as error:  # a template is a program
        raise UsageError(
            f"the chat template rejects row {number}: {' '.join(str(error).split())[:200]}", "Correct it, or use --plain."
        ) from error


def _begun(loaded: Loaded, text: str, policy: LengthPolicy | None, *, special: bool) -> list[int]:
    """Ids of a text that is to be gone on with."""
    if special and policy is not None:
        return [*policy.prefix, *bare(loaded.tokenizer, [text])[0]]
    ids: list[int] = loaded.tokenizer(text, add_special_tokens=special)["input_ids"]
    return ids


def _room(loaded: Loaded) -> int:
    """Tokens that the model takes."""
    limit = length_limit(loaded.tokenizer)
    return min(limit, places(loaded.model) or NO_LIMIT)


def _padded(
    loaded: Loaded, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None, *, left: bool
) -> dict[str, torch.Tensor]:
    width = max(1, *map(len, rows)) if rows else 1
    pad = loaded.model.config.get_text_config().pad_token_id  # classifiers that are decoders look by it for the last token
    ids = torch.full((len(rows), width), pad, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, where], mask[number, where] = torch.tensor(row, dtype=torch.int64), 1
    device = loaded.model.device
    batch = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
    if types is not None:
        batch[TYPES] = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in types], batch_first=True).to(device)
    return batch


def _labels(
    loaded: Loaded, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, threshold: float, top_k: int
) -> Iterator[dict[str, Any]]:
    config = loaded.model.config
    logits = loaded.model(**_padded(loaded, rows, types, left=False)).logits.float().cpu()
    if not logits.isfinite().all():
        raise ModelError(
            "the model's outputs are NaN or infinite", "Its weights are broken, or too large for their type: take an earlier checkpoint."
        )
    if config.problem_type == "regression" or logits.shape[-1] == 1:
        yield from ({"score": float(row[0])} for row in logits)
        return
    for row in logits.sigmoid() if loaded.several else logits.softmax(-1):
        likeliest = row.argsort(descending=True, stable=True)
        labels = [{"label": str(config.id2label[int(which)]), "probability": float(row[which])} for which in likeliest[: top_k or None]]
        if loaded.several:
            yield {"holds": [str(config.id2label[int(which)]) for which in likeliest if row[which] >= threshold], "labels": labels}
        else:
            yield {"label": labels[0]["label"], "probability": labels[0]["probability"], "labels": labels}


def _answers(loaded: Loaded, rows: Sequence[Sequence[int]], most: int) -> Iterator[dict[str, Any]]:
    batch = _padded(loaded, rows, left=True)
    told = loaded.model.generation_config.eos_token_id  # a chat model may end its turns with another token than its texts
    ends = {*(told if isinstance(told, list) else [told]), loaded.tokenizer.eos_token_id} - {None}
    out = loaded.model.generate(
        **batch,
        max_new_tokens=most,
        do_sample=False,
        use_cache=True,
        pad_token_id=loaded.tokenizer.pad_token_id,
        eos_token_id=sorted(ends) or None,
    )
    for row in out[:, batch["input_ids"].shape[1] :].tolist():
        said = [*takewhile(lambda token: token not in ends, row)]
        ended = len(said) < len(row)
        yield {"answer": loaded.tokenizer.decode(said, skip_special_tokens=True), "tokens": len(said), "ended": ended}
