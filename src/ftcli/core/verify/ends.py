"""The tokens that a model takes for the end of a text, by its own files: a chat model may have another for its turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.errors import FtcliError

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe


def configured(probe: Probe) -> list[int]:
    """Those of its configuration."""
    from ftcli.core.verify.missing import Missing

    try:
        return _several(getattr(probe.config.get_text_config(), "eos_token_id", None))
    except (Missing, FtcliError):  # the first check of the model says what is wrong with it
        return []


def generating(probe: Probe) -> list[int]:
    """Those of generation_config.json, which `generate` ends at and a run saves again; none where there is no such file."""
    from transformers import GenerationConfig

    from ftcli.core.models.adapter_base import base_of, revision_of

    name = probe.settings.model.name_or_path
    if name is None:
        return []
    try:
        found = GenerationConfig.from_pretrained(base_of(name), revision=probe.settings.model.revision or revision_of(name))
    except (OSError, ValueError, FtcliError):
        return []
    return _several(found.eos_token_id)


def _several(ends: Any) -> list[int]:
    return [] if ends is None else [int(end) for end in (ends if isinstance(ends, (list, tuple)) else [ends])]
