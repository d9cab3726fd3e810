"""A batch of conversations → marked ids, in any process: the chat template, then the run's engine, then the borders of what is learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ftcli.contracts import Encoded
from ftcli.core.engines.backend import strip
from ftcli.core.engines.row_encoder import RowEncoder
from ftcli.core.prepare.job import Expected, Job, load_here, plugins_at, plugins_of
from ftcli.core.reading.reject import Fault
from ftcli.core.targets import Locate, marked, with_prefix
from ftcli.core.tokenizer.template import Rendered, Template
from ftcli.core.tokenizer.without_torch import Light, can_hide
from ftcli.pluginmanager import Plugins
from ftcli.settings import Settings, cache_folder, template_day

_kept: dict[str, tuple[Template, Any]] = {}


@dataclass(frozen=True, slots=True)
class Spoken:
    """Ids of a batch with the targets marked (`ftcli.core.targets`), and the rows that cannot be used."""

    encoded: Encoded
    faults: dict[int, Fault]
    shapes: Sequence[str]


def template_of(tokenizer: Any, settings: Settings, day: str | None = None) -> Template:
    """The template of a loaded tokenizer, as these settings want it used, and with the run's day where that is settled."""
    dataset = settings.dataset
    return Template(
        tokenizer,
        str(settings.tokenizer.path),
        assistant_only=dataset.assistant_only_loss,
        completion_only=dataset.completion_only_loss,
        add_eos=settings.tokenizer.add_eos,
        day=day or template_day(settings),
    )


def prepare_worker(job: Job) -> None:
    """Load what this process needs before the clock starts: plugins and encoder, and for conversations the tokenizer with its template."""
    load_here(job)
    if job.chat:
        _template(job)


def load_template_early(settings: Settings, plugins_dir: Path | None, allow: tuple[str, ...] | None, expected: Expected) -> None:
    """Load the tokenizer with its template in a worker, while the command does the same to prove it: 3 s of its start."""
    _load_template(settings, plugins_at(plugins_dir, allow, expected))


def encode_conversations(job: Job, encoder: RowEncoder, documents: pa.Array) -> Spoken:
    """
    Args:
        documents: as `ftcli.core.reading.conversation.as_document` writes them.

    Raises:
        TokenizerError: the tokenizer cannot be loaded here, or has no chat template and a row needs one.
    """
    template, tokenizer = _template(job)
    rendered = template.render(documents.to_pylist())
    encoded, lost = marked(encoder, rendered.texts, rendered.spans, _locate(tokenizer))
    if job.settings.tokenizer.add_special_tokens:
        encoded = with_prefix(encoded, rendered.bare, job.encoder.backend.prefix)
    return Spoken(encoded, _faults(job, rendered, lost), rendered.shapes)


def _template(job: Job) -> tuple[Template, Any]:
    template, tokenizer = _load_template(job.settings, plugins_of(job))
    template.day = job.day  # it was perhaps loaded before that was settled, or on another one
    return template, tokenizer


def _load_template(settings: Settings, plugins: Plugins) -> tuple[Template, Any]:
    """Loaded once a process: it takes a second."""
    key = repr((settings.tokenizer, settings.dataset.assistant_only_loss, settings.dataset.completion_only_loss))
    if key not in _kept:
        light = Light(can_hide(), cache_folder(settings))  # a worker encodes, and needs torch for nothing: 2 s of CPU and 300 MB
        tokenizer = light.load(lambda: plugins.load_tokenizer(settings))
        strip(tokenizer)
        _kept.clear()
        _kept[key] = template_of(tokenizer, settings), tokenizer
    return _kept[key]


def _locate(tokenizer: Any) -> Locate | None:
    if not tokenizer.is_fast:
        return None
    return lambda text: tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)


def _faults(job: Job, rendered: Rendered, lost: Sequence[int]) -> dict[int, Fault]:
    name, hint = job.columns.text, "Correct the row or the template, or put such rows aside with --on-bad quarantine."
    faults = {row: Fault("template", reason, name, hint) for row, reason in rendered.faults.items()}
    reason = "a token crosses the boundary of what is learned, and the tokenizer does not report its tokens' character offsets"
    return {**dict.fromkeys(lost, Fault("template", reason, name, hint)), **faults}
