"""An adapter and its base as one plain model, written aside, compared with what it came from, and made to appear whole."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from ftcli.core.models.adapter_base import ADAPTER_CONFIG, as_peft_asks, base_of, revision_of
from ftcli.core.models.frozen import refuse_other_base
from ftcli.core.models.model import OWN_CODE
from ftcli.core.publishing import staging
from ftcli.errors import MissingExtraError, ModelError, PublishError, UsageError

ALIKE = 5e-5
"""Largest difference of a logit, beside the largest logit, that rounding may make in float32: 1.1e-5 was seen on Gemma 4, whose layers scale what they give."""
LENGTH = 16


def load_adapted(folder: Path, *, trust: bool = False) -> Any:
    """An adapter on its base, in float32, ready to be asked.

    Args:
        trust: run Python code that comes with the base.

    Raises:
        ModelError: adapter and base cannot be loaded, do not fit, or the base is another than it was.
        MissingExtraError: peft is not installed.
    """
    try:
        from peft import PeftConfig, PeftModel
    except ImportError as error:
        raise MissingExtraError("an adapter needs the package peft", 'Run: pip install "ftcli[peft]"') from error
    base = base_of(str(folder))
    try:
        adapter = PeftConfig.from_pretrained(str(folder))
        where = {"revision": revision_of(str(folder)), "trust_remote_code": trust}  # transformers takes no revision of folders
        config = _config(folder, base, where)
        family = AutoModelForSequenceClassification if str(adapter.task_type).endswith("SEQ_CLS") else AutoModelForCausalLM
        model = family.from_pretrained(
            base, config=config, dtype=torch.float32, use_safetensors=True, ignore_mismatched_sizes=True, **where
        )
        refuse_other_base(str(folder))  # here, where a base of the hub is on this machine
        with as_peft_asks():
            return PeftModel.from_pretrained(model, str(folder)).eval()
    except (ValueError, RuntimeError, OSError, KeyError, ImportError) as error:
        raise ModelError(
            f"the adapter {folder} cannot be loaded on its base {base}: {' '.join(str(error).split())[:300]}",
            OWN_CODE if "trust_remote_code" in str(error) else "Check that the base is where adapter_config.json says.",
        ) from error


def tokenizer_of(folder: Path, *, trust: bool = False) -> Any:
    """The tokenizer of an adapter's folder, or of its base where another program saved the adapter alone.

    Args:
        trust: run Python code that comes with it.

    Raises:
        ModelError: neither has one that can be loaded.
    """
    own = any((folder / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json"))
    source = str(folder) if own else base_of(str(folder))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=None if own else revision_of(str(folder)), trust_remote_code=trust)
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes an empty one by the model's type
            raise ValueError("it has no vocabulary")
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise ModelError(
            f"no tokenizer can be loaded from {source}: {' '.join(str(error).split())[:300]}",
            OWN_CODE
            if "trust_remote_code" in str(error)
            else f"Put the files of the tokenizer that the adapter was trained with into {folder}.",
        ) from error
    return tokenizer


def _config(folder: Path, base: str, where: Mapping[str, Any]) -> Any:
    """The configuration beside an adapter, which has its labels, or the base's. How a base was quantised to train on says nothing of its file."""
    if not (folder / "config.json").is_file():
        return AutoConfig.from_pretrained(base, **where)
    config = AutoConfig.from_pretrained(str(folder), trust_remote_code=where["trust_remote_code"])
    if hasattr(config, "quantization_config") and not hasattr(AutoConfig.from_pretrained(base, **where), "quantization_config"):
        del config.quantization_config
    return config


def merge(folder: Path, output: Path, *, trust: bool = False) -> dict[str, Any]:
    """Write the merged model with the tokenizer of the adapter, or of its base, to `output`.

    Args:
        trust: run Python code that comes with the base or the tokenizer.

    Returns:
        weights (their number), largest difference of a logit between both models on random tokens, and the largest logit.

    Raises:
        UsageError: `folder` is no adapter, or `output` is there.
        ModelError: the adapter or a tokenizer cannot be loaded, or the merged model gives other logits.
        PublishError: it cannot be written.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        raise UsageError(f"{folder} is no adapter: {ADAPTER_CONFIG} is missing", "Give the output directory of a run with --lora-r.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} is there already", "Name another --output-dir.")
    tokenizer, model = tokenizer_of(folder, trust=trust), load_adapted(folder, trust=trust)
    ids = _tokens(model)
    before = _logits(model, ids)
    with torch.no_grad(), as_peft_asks():
        merged = model.merge_and_unload(safe_merge=True).eval()
    staged = output.with_name(f".{output.name}.merging")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        staged.mkdir(parents=True)
        merged.save_pretrained(staged)
        tokenizer.save_pretrained(staged)
        after = _logits(type(merged).from_pretrained(staged, dtype=torch.float32).eval(), ids)
        difference, largest = float((after - before).abs().max()), float(before.abs().max())
        if not difference <= ALIKE * max(1.0, largest):
            raise ModelError(f"the merged model's logits differ by {difference:.3g}: nothing was written", "Report this adapter.")
        staging.sealed(staged, staging.MODEL_MANIFEST, {"schema": staging.MODEL_SCHEMA, "merged": True})
        if output.is_dir():
            output.rmdir()
        staged.rename(output)
    except OSError as error:
        raise PublishError(
            f"the merged model cannot be written to {output}: {error.strerror or error}", "Check space and permissions."
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return {"weights": sum(weight.numel() for weight in merged.parameters()), "largest_difference": difference, "largest_logit": largest}


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Row by row: a classifier that is a decoder without PAD takes no more than one."""
    with torch.no_grad():
        return torch.cat([model(input_ids=row[None]).logits for row in ids])


def _tokens(model: Any) -> torch.Tensor:
    rows = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.randint(0, rows, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    padding = model.config.pad_token_id
    return ids if padding is None else torch.where(ids == padding, (ids + 1) % rows, ids)
