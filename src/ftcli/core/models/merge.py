"""An adapter and its base as one plain model, written aside, compared with what it came from, and made to appear whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from ftcli.core.doctor.installed import require
from ftcli.core.models.adapter_base import ADAPTER_CONFIG, as_peft_asks, base_of, refuse_absent, revision_of, unavailable
from ftcli.core.models.frozen import refuse_other_base, stored_type
from ftcli.core.models.model import OWN_CODE
from ftcli.core.publishing import staging
from ftcli.errors import ModelError, PublishError, UsageError

ALIKE = 5e-5
"""Largest difference of a logit, beside the largest logit, that rounding may make in float32: 1.1e-5 was seen on Gemma 4, whose layers scale what they give."""
LENGTH = 16


def load_adapted(folder: Path, *, trust: bool = False) -> Any:
    """An adapter on its base, in float32, ready to be asked.

    Args:
        trust: run Python code that comes with the base.

    Raises:
        ModelError: adapter and base cannot be loaded, do not fit, or the base is another than it was.
        MissingExtraError: peft is not installed or too old.
    """
    require("peft", "an adapter")
    from peft import PeftConfig, PeftModel

    refuse_absent(str(folder))
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
        raise unavailable(base, error) or ModelError(
            f"the adapter {folder} cannot be loaded on its base {base}: {' '.join(str(error).split())[:300]}",
            OWN_CODE if "trust_remote_code" in str(error) else "Check that the base is at the path in adapter_config.json.",
        ) from error


def tokenizer_of(folder: Path, *, trust: bool) -> Any:
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
        raise unavailable(source, error) or ModelError(
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


def merge(folder: Path, output: Path, *, trust: bool = False, overwrite: bool = False) -> dict[str, Any]:
    """Write the merged model with the tokenizer of the adapter, or of its base, to `output`, in the type of the base's weights.

    Args:
        trust: run Python code that comes with the base or the tokenizer.
        overwrite: replace an earlier merged model.

    Returns:
        weights (their number), their type, largest difference of a logit between both models on random tokens in float32, what rounding to the
        type adds, and the largest logit.

    Raises:
        UsageError: `folder` is no adapter, or `output` is there and may not be replaced.
        ModelError: the adapter or a tokenizer cannot be loaded, or the merged model gives other logits.
        PublishError: it cannot be written.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        raise UsageError(f"{folder} is not an adapter: {ADAPTER_CONFIG} is missing", "Give the output directory of a run with --lora-r.")
    _refuse_output(folder, output, overwrite=overwrite)
    place = output.resolve()
    tokenizer, model = tokenizer_of(folder, trust=trust), load_adapted(folder, trust=trust)
    ids, kind = _tokens(model), _own_type(folder, model)
    before = _logits(model, ids)
    with torch.no_grad(), as_peft_asks():
        merged = model.merge_and_unload(safe_merge=True).eval()
    plain = _logits(merged, ids)
    largest = max(1.0, float(before.abs().max()))
    difference = _differ(plain, before, largest)
    staged = place.with_name(f".{place.name}.merging")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        staged.mkdir(parents=True)
        _cast(merged, torch.float32, kind)
        merged.save_pretrained(staged)
        tokenizer.save_pretrained(staged)
        _cast(merged, kind, torch.float32)
        rounded = _logits(merged, ids)
        written = _logits(type(merged).from_pretrained(staged, dtype=torch.float32).eval(), ids)
        difference = max(difference, _differ(written, rounded, largest))
        staging.sealed(staged, staging.MODEL_MANIFEST, {"schema": staging.MODEL_SCHEMA, "merged": True})
        staging.appear(staged, place)
    except OSError as error:
        raise PublishError(
            f"the merged model cannot be written to {output}: {error.strerror or error}", "Check space and permissions."
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return {
        "weights": sum(weight.numel() for weight in merged.parameters()),
        "dtype": str(kind).removeprefix("torch."),
        "largest_difference": difference,
        "largest_rounding": float((rounded - plain).abs().max()),
        "largest_logit": float(before.abs().max()),
    }


def _refuse_output(folder: Path, output: Path, *, overwrite: bool) -> None:
    """Raises `UsageError` where something is there that is no earlier merged model alone, or that is read."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not overwrite:
        raise UsageError(f"{output} already exists", "Choose another --output-dir, or replace an earlier merged model with --overwrite.")
    place = output.resolve()
    for read in (folder, Path(base_of(str(folder)))):
        if read.exists() and place in (read.resolve(), *read.resolve().parents):
            raise UsageError(f"{output} would be replaced, but {read} is read from it", "Choose another --output-dir.")
    own = {place / name for name in (staging.MODEL_MANIFEST, *staging.listed(place))}
    if (other := next((path for path in sorted(place.rglob("*")) if path.is_file() and path not in own), None)) or not _is_merged(place):
        what = f"{other} is not of a merged model" if other and _is_merged(place) else f"{output} is not a merged model"
        raise UsageError(f"{what}: --overwrite only replaces merged models", "Choose another --output-dir.")


def _is_merged(place: Path) -> bool:
    try:
        return bool(json.loads((place / staging.MODEL_MANIFEST).read_bytes()).get("merged"))
    except (OSError, ValueError, AttributeError):
        return False


def _own_type(folder: Path, model: Any) -> torch.dtype:
    """The type in which the base's weights lie; float32 where they are quantised, as peft merges into these what it can."""
    if hasattr(model.config, "quantization_config"):
        return torch.float32
    try:
        name = stored_type(base_of(str(folder)), revision_of(str(folder)))
    except (OSError, ValueError, KeyError, TypeError):
        return torch.float32
    kind: torch.dtype = getattr(torch, name)
    return kind


def _cast(model: Any, before: torch.dtype, after: torch.dtype) -> None:
    """Give the weights of one type another, in place, but for those that transformers keeps in float32."""
    kept = {*(getattr(model, "_keep_in_fp32_modules", None) or ()), *(getattr(model, "_keep_in_fp32_modules_strict", None) or ())}
    for name, weight in model.named_parameters():
        if weight.dtype == before and not any(part in name for part in kept):
            weight.data = weight.data.to(after)


def _differ(found: torch.Tensor, wanted: torch.Tensor, largest: float) -> float:
    """Raises `ModelError` where logits differ by more than rounding in float32."""
    difference = float((found - wanted).abs().max())
    if not difference <= ALIKE * largest:
        raise ModelError(f"the merged model's logits differ by {difference:.3g}: nothing was written", "Please report this adapter.")
    return difference


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Row by row: a classifier that is a decoder without PAD takes no more than one."""
    with torch.no_grad():
        return torch.cat([model(input_ids=row[None]).logits for row in ids])


def _tokens(model: Any) -> torch.Tensor:
    rows = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.randint(0, rows, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    padding = model.config.pad_token_id
    return ids if padding is None else torch.where(ids == padding, (ids + 1) % rows, ids)
