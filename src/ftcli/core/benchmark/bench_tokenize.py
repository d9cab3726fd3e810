"""What `benchmark tokenize` times: engines on the same rows in memory, after their ids were compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ftcli.context import Context
from ftcli.core.benchmark.floor import text_bytes
from ftcli.core.benchmark.limits import Limit, copied_bytes_per_second
from ftcli.core.benchmark.measure import Variant
from ftcli.core.engines.backend import prepare_backend
from ftcli.core.engines.engine import EngineChoice, choose_engine, load_encoder
from ftcli.core.engines.proof import Reference, differing_rows
from ftcli.core.files.manifest import hash_bytes
from ftcli.core.prepare.dialogue import template_of
from ftcli.core.reading.read import Plan, make_plan, read_shard
from ftcli.errors import DataError, EngineError, MissingExtraError, UsageError
from ftcli.versions import version

REFERENCE = "hf"


def variants(context: Context) -> list[Variant]:
    """One variant an engine that is exact for this tokenizer, the reference first; those left out are noted with the reason.

    Raises:
        UsageError: no source or no tokenizer.
        DataError: the rows hold no text.
        EngineError: an engine that was asked for is not exact here.
    """
    settings = context.settings
    if not settings.dataset.sources or not settings.tokenizer.path:
        raise UsageError(
            "benchmark tokenize needs --dataset SOURCE and --tokenizer-path DIR", "Any file that `ftcli tokenize` reads works."
        )
    tokenizer = context.plugins.load_tokenizer(settings)
    taken = _taken(context, tokenizer)
    texts = taken.texts
    asked = list(dict.fromkeys(settings.benchmark.variants or ()))
    names = asked or [REFERENCE, *(name for name in context.plugins.registry("engine").names() if name != REFERENCE)]
    sample = texts.slice(0, 500).to_pylist()
    chosen = settings.tokenizer
    backend = prepare_backend(tokenizer, settings.tokenizer.path, chosen.revision, chosen.trust_remote_code)
    shared = Reference(tokenizer, backend, context.machine.cores)
    choices: dict[str, EngineChoice] = {}
    for name in names:
        try:
            choices[name] = choose_engine(
                tokenizer,
                settings.tokenizer.path,
                context.plugins,
                requested=name,
                cache_dir=context.cache_dir,
                sample=sample,
                threads=context.machine.cores,
                add_special_tokens=settings.tokenizer.add_special_tokens and not taken.bare,
                reference=shared,
            )
        except (EngineError, MissingExtraError) as error:
            if asked:
                raise
            context.note(f"{name} is left out: {error.message}")
    found = [_variant(name, choice, context, taken) for name, choice in choices.items()]
    context.note(
        f"{taken.rows:,} rows{taken.words}, {text_bytes(texts) / 1e6:.1f} MB of text in memory; ids compared on all of them; every run uses the same rows, so engine caches are warm; {context.machine.cores} threads"
    )
    return found


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is encoded: the texts of some rows, which hold two each where there are pairs."""

    texts: pa.Array
    rows: int
    words: str = ""
    """What they are, if not plain texts."""
    bare: bool = False
    """Whether the tokenizer's own tokens are not added to each: a chat template has written them, and those around pairs come later."""

    @property
    def mark(self) -> str:
        """Hash of the texts."""
        return hash_bytes("\0".join(self.texts.to_pylist()).encode())


def _variant(name: str, choice: EngineChoice, context: Context, taken: _Taken) -> Variant:
    encoder, texts, size = load_encoder(choice.spec, context.plugins), taken.texts, text_bytes(taken.texts)
    encoded = encoder.encode_whole(texts)
    if encoder.failures:
        raise EngineError(encoder.failures[0], "Report it; use --tokenizer-engine hf meanwhile.")
    if name != REFERENCE and encoder.rows_by_reference:
        context.note(f"{name}: {encoder.rows_by_reference:,} of {len(texts):,} texts go to {REFERENCE}, as in `ftcli tokenize`")
    if name != REFERENCE:
        reference = load_encoder(replace(choice.spec, engine=REFERENCE, version=version("tokenizers")), context.plugins).encode_whole(texts)
        wrong = differing_rows(reference, encoded)
        if len(wrong):
            raise EngineError(
                f"{name} differs from the reference in row {int(wrong[0])}", "Report it; use --tokenizer-engine hf meanwhile."
            )
    tokens = len(encoded.ids)
    if not tokens:
        raise DataError(
            f"the first {taken.rows:,} rows give no token: their texts are empty", "Give other data, or more of them with --rows."
        )

    def run() -> Mapping[str, float]:
        encoder.encode_whole(texts)
        return {"tokens": tokens, "examples": taken.rows, "MB": size / 1e6}

    def beside(rate: float) -> Limit:
        best = copied_bytes_per_second() / 1e6
        return Limit(name, "copying the text once", "MB/s", rate * size / tokens / 1e6, best)

    return Variant(name, run, beside, taken.mark)


def _taken(context: Context, tokenizer: Any) -> _Taken:
    """The first rows (those of the train split come first), as `ftcli tokenize` gives them to the engine."""
    settings, formats = context.settings, context.plugins.registry("source")
    plan = make_plan(settings, formats, context.progress)
    found = pa.concat_tables([pa.Table.from_batches([batch]) for batch in _first_rows(context, plan)])
    texts = [found.column(name).combine_chunks() for name in ("text", "pair") if name in found.column_names]
    if plan.columns.chat is not None:
        rendered = template_of(tokenizer, settings).render(texts[0].to_pylist()).texts
        said = pa.array([text for text in rendered if text is not None], pa.large_string())
        return _Taken(said, found.num_rows, " as the chat template writes them", bare=True)
    if plan.columns.pair is not None:
        return _Taken(pa.concat_arrays(texts), found.num_rows, " of two texts", bare=True)
    return _Taken(texts[0], found.num_rows)


def _first_rows(context: Context, plan: Plan) -> list[pa.RecordBatch]:
    wanted, found = context.settings.benchmark.rows, []
    for shard in plan.shards:
        for _, batch in read_shard(shard, plan.columns, context.settings, context.plugins.registry("source")):
            texts = batch.select([name for name in ("text", "pair") if name in batch.schema.names])
            found.append(texts.slice(0, wanted))
            wanted -= len(found[-1])
            if wanted <= 0:
                return found
    if not found:
        raise DataError("the sources hold no row", "Give other data.")
    return found
