"""What `benchmark tokenize` times: engines on the same rows in memory, after their ids were compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version

import pyarrow as pa

from ftcli.context import Context
from ftcli.core.benchmark.limits import Limit, copied_bytes_per_second
from ftcli.core.benchmark.measure import Variant
from ftcli.core.engines.backend import prepare_backend
from ftcli.core.engines.engine import EngineChoice, choose_engine, load_encoder
from ftcli.core.engines.proof import Reference, differing_rows
from ftcli.core.reading.read import make_plan, read_shard
from ftcli.errors import EngineError, MissingExtraError, UsageError

REFERENCE = "hf"


def variants(context: Context) -> list[Variant]:
    """One variant an engine that is exact for this tokenizer, the reference first; those left out are noted with the reason.

    Raises:
        UsageError: no source or no tokenizer.
        EngineError: an engine that was asked for is not exact here.
    """
    settings = context.settings
    if not settings.dataset.sources or not settings.tokenizer.path:
        raise UsageError(
            "benchmark tokenize needs --dataset SOURCE and --tokenizer-path DIR", "Any file that `ftcli tokenize` reads will do."
        )
    texts = _rows(context)
    tokenizer = context.plugins.load_tokenizer(settings)
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
                add_special_tokens=settings.tokenizer.add_special_tokens,
                reference=shared,
            )
        except (EngineError, MissingExtraError) as error:
            if asked:
                raise
            context.note(f"{name} is left out: {error.message}")
    size = int(texts.nbytes)
    found = [_variant(name, choice, context, texts, size) for name, choice in choices.items()]
    context.note(
        f"{len(texts):,} rows, {size / 1e6:.1f} MB of text in memory; ids compared on all of them; the same rows in every run, so that what an engine caches is warm; {context.machine.cores} threads"
    )
    return found


def _variant(name: str, choice: EngineChoice, context: Context, texts: pa.Array, size: int) -> Variant:
    encoder = load_encoder(choice.spec, context.plugins)
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

    def run() -> Mapping[str, float]:
        encoder.encode_whole(texts)
        return {"tokens": tokens, "examples": len(texts), "MB": size / 1e6}

    def beside(rate: float) -> Limit:
        best = copied_bytes_per_second() / 1e6
        return Limit(name, "copying the text once", "MB/s", rate * size / tokens / 1e6, best)

    return Variant(name, run, beside)


def _rows(context: Context) -> pa.Array:
    """The first rows (those of the train split come first), as one large_string array."""
    settings, formats = context.settings, context.plugins.registry("source")
    plan = make_plan(settings, formats, context.progress)
    wanted, found = settings.benchmark.rows, []
    for shard in plan.shards:
        for _, batch in read_shard(shard, plan.columns, settings, formats):
            found.append(batch.column("text").slice(0, wanted))
            wanted -= len(found[-1])
            if wanted <= 0:
                return pa.concat_arrays(found)
    return pa.concat_arrays(found)
