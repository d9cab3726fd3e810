"""For ftcli's own tests and plugin authors: run the command line in this process; tiny tokenizers and models that train in a second."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.cli.main import main

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TEXTS = (
    "The invoice for order 4711 has not arrived yet.",
    "Please cancel my subscription at the end of the month.",
    "How do I reset the password of my account?",
    "The parcel came damaged and I would like a refund.",
    "배송이 아직 도착하지 않았습니다. 확인 부탁드립니다.",
    "비밀번호를 잊어버렸어요. 어떻게 바꾸나요?",
    "주문한 상품을 환불받고 싶습니다.",
    "영수증을 이메일로 보내 주세요.",
)
"""A few short texts in English and Korean."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        """The document of `--json`: the last line of stdout."""
        document: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return document


def run(*words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Result:
    """Run `ftcli WORDS…` in this process.

    Args:
        env: variables for this run only.
        cwd: working directory for this run only.

    The environment and the working directory are restored afterwards; modules stay imported.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with _restored(cwd), redirect_stdout(out), redirect_stderr(err):
        os.environ.update(env or {})
        code = main([str(word) for word in words])
    return Result(code, _text(out), _text(err))


def tiny_tokenizer(folder: Path, vocab_size: int = 384) -> Path:
    """Train a byte-level BPE with <pad> (0), <eos> (1) and <bos> (2) on `TEXTS` and save it as a Hugging Face folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<eos>", "<bos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    roles = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **roles)
    tokenizer.save_pretrained(str(folder))
    return folder


def tiny_config(kind: str = "qwen3", *, vocab_size: int = 384, labels: int | None = None) -> dict[str, Any]:
    """The config.json of a two-layer model of 32 dimensions.

    Args:
        kind: "qwen3" or "bert".
        labels: number of classes; None omits the field.
    """
    common = {
        "model_type": kind,
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        **({"num_labels": labels} if labels is not None else {}),
    }
    own: dict[str, dict[str, Any]] = {
        "qwen3": {
            "architectures": ["Qwen3ForCausalLM"],
            "num_key_value_heads": 2,
            "head_dim": 8,
            "eos_token_id": 1,
            "bos_token_id": 2,
            "tie_word_embeddings": True,
        },
        "bert": {"architectures": ["BertForSequenceClassification"], "type_vocab_size": 2},
    }
    return {**common, **own[kind]}


def write_config(path: Path, kind: str = "qwen3", *, vocab_size: int = 384, labels: int | None = None) -> Path:
    """Write `tiny_config` as a file for --model-config."""
    path.write_text(json.dumps(tiny_config(kind, vocab_size=vocab_size, labels=labels)), encoding="utf-8")
    return path


def tiny_model(kind: str = "qwen3", *, vocab_size: int = 384, labels: int | None = None, seed: int = 0) -> PreTrainedModel:
    """A model with random weights from `seed`: with a classification head if `labels` is given, else a language model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    torch.manual_seed(seed)
    fields = tiny_config(kind, vocab_size=vocab_size, labels=labels)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    family = AutoModelForCausalLM if labels is None else AutoModelForSequenceClassification
    model: PreTrainedModel = family.from_config(config)
    return model


@contextmanager
def _restored(cwd: Path | None) -> Iterator[None]:
    environment, folder = dict(os.environ), Path.cwd()
    if cwd is not None:
        os.chdir(cwd)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")
