"""Choosing a tokenization engine for a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ftcli.contracts import Encoder, Engine
from ftcli.core.engines.backend import Backend, prepare_backend
from ftcli.core.engines.guard import comes_with, guarded
from ftcli.core.engines.proof import (
    Difference,
    Proof,
    Reference,
    prove,
    reference_version,
    shrink,
    store_proof,
    stored_proof,
)
from ftcli.core.engines.row_encoder import REFERENCE, EncoderSpec, RowEncoder
from ftcli.core.engines.sampled_rows import SampledRows
from ftcli.errors import EngineError, MissingExtraError
from ftcli.pluginmanager import Plugins

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Load = Callable[[Engine, Backend, int, bool], Encoder]
"""(engine, tokenizer, threads, whether an earlier run proved it) → encoder."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine of a run and why; `proof` is for the manifest, `notes` names what was tried and refused."""

    spec: EncoderSpec
    reason: str
    proof: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.spec.engine

    @property
    def version(self) -> str:
        return self.spec.version


@lru_cache(maxsize=2)
def load_encoder(spec: EncoderSpec, plugins: Plugins) -> RowEncoder:
    """The encoder for a spec, loaded once a process; no proof is done again.

    Raises:
        EngineError: the engine cannot load the tokenizer, or is another version than the proved one.
    """
    if spec.whole or not spec.backend.json:
        return RowEncoder(spec, None)
    engine = _engine(spec.engine, plugins)
    if engine.version != spec.version:
        raise EngineError(
            f"{spec.engine} {engine.version} is installed here, the proof is for {spec.version}",
            "Install the same version on every machine.",
        )
    return RowEncoder(spec, loaded(spec.engine, spec.backend, spec.threads, plugins), comes_with(spec.engine, plugins))


@lru_cache(maxsize=2)
def loaded(name: str, backend: Backend, threads: int, plugins: Plugins) -> Encoder:
    """An engine loaded for a tokenizer, once a process, proved or not.

    Raises:
        EngineError: it cannot load the tokenizer.
    """
    try:
        return _load(_engine(name, plugins), backend, threads)
    except EngineError as error:
        error.message += comes_with(name, plugins)
        raise


def choose_engine(
    tokenizer: PreTrainedTokenizerBase,
    folder: Path | str,
    plugins: Plugins,
    *,
    requested: str = "auto",
    cache_dir: Path | None = None,
    sample: Sequence[str] = (),
    threads: int = 1,
    add_special_tokens: bool = True,
    audit: float = 0.0,
    load: Load | None = None,
    backend: Backend | None = None,
    reference: Reference | None = None,
) -> EngineChoice:
    """The fastest engine whose ids are proved equal for this tokenizer, or the requested one if its are.

    Args:
        requested: "auto" or an engine's name.
        cache_dir: where proofs over the stored corpus, and the reference's ids of the sample, are kept; None keeps none.
        sample: rows of the data, compared in every run (`SampledRows` says how many).
        audit: share of the texts of the run that the reference will encode as well.
        load: loads the engines that are tried; `ftcli.core.prepare.engine_trials` does it in another process. None: in this one.
        backend: what `prepare_backend` has made of the tokenizer already (0.1 s for Qwen3).
        reference: what another choice for this tokenizer compares with: its ids over the corpus (12 s of CPU for GPT-2) are made once for both.

    Raises:
        SettingsError: no plugin offers the requested engine.
        EngineError: the requested engine fails its proof; names the text and both ids.
    """
    backend = reference.backend if reference else backend or prepare_backend(tokenizer, folder)
    rows = SampledRows(sample, tokenizer, backend, add_special_tokens, cache_dir)
    candidates = _candidates(plugins, requested)
    notes = list(backend.notes)
    if candidates and (not backend.json or (add_special_tokens and not backend.constant)):
        if requested != "auto":
            raise EngineError(f"tokenizer.engine = {requested!r}: {notes[-1]}", "Use --tokenizer-engine auto or hf.")
        candidates = []
    reference = reference or Reference(tokenizer, backend, threads)
    for engine in candidates:
        try:
            proof, note = _prove(engine, reference, rows, cache_dir, load or _load, threads=threads, mark=_mark(engine.name, plugins))
        except (EngineError, MissingExtraError) as error:
            error.message += comes_with(engine.name, plugins)
            if requested != "auto":
                raise
            notes.append(f"engine {engine.name} is not used: {error.message}")
            continue
        spec = EncoderSpec(engine.name, engine.version, backend, proof.excluded, proof.doubled, threads, add_special_tokens, audit)
        document = {**_document(proof, rows), "audit": audit}
        return EngineChoice(spec, _reason(requested, proof, rows), document, tuple(filter(None, (*notes, note))))
    backend = rows.confirmed(threads)
    notes.extend(note for note in backend.notes if note not in notes)
    if audit:
        notes.append("nothing is audited: the reference encodes everything")
    spec = EncoderSpec(REFERENCE, _engine(REFERENCE, plugins).version, backend, threads=threads, add_special_tokens=add_special_tokens)
    why = "asked for" if requested == REFERENCE else "no faster engine was proved equal for this tokenizer"
    proof_document = {"engine": REFERENCE, "version": spec.version, "tokenizer": backend.hash, "reference": reference_version()}
    return EngineChoice(spec, f"hf: {why}; it is the reference itself", proof_document, tuple(notes))


def proved_engine(backend: Backend, plugins: Plugins, requested: str, cache_dir: Path, add_special_tokens: bool) -> Engine | None:
    """The engine that `choose_engine` will take unless a row of the data speaks against it; None when that takes a proof first."""
    if not backend.json or (add_special_tokens and not backend.constant):
        return None
    for engine in _candidates(plugins, requested):
        proof = stored_proof(cache_dir, backend, engine.name, engine.version, _mark(engine.name, plugins))
        if proof is None or proof.difference is None:
            return engine if proof else None
    return None


def _candidates(plugins: Plugins, requested: str) -> list[Engine]:
    """The engines to try, the fastest first; none but the reference is left when it is empty."""
    if requested != "auto":
        return [] if requested == REFERENCE else [_engine(requested, plugins)]
    names = [name for name in plugins.registry("engine").names() if name != REFERENCE]
    return sorted((_engine(name, plugins) for name in names), key=lambda engine: engine.rank)


def _prove(
    engine: Engine, reference: Reference, rows: SampledRows, cache_dir: Path | None, load: Load, *, threads: int, mark: str
) -> tuple[Proof, str]:
    """The proof of an engine that passed, over the corpus (kept from run to run) and the rows of the data (in every run), and a note."""
    backend, name, note = reference.backend, f"{engine.name} {engine.version}", ""
    proof = stored_proof(cache_dir, backend, engine.name, engine.version, mark)
    if proof is not None and proof.difference is not None:
        raise _refused(name, proof.difference)
    encoder = load(engine, backend, threads, proof is not None)
    if proof is None:
        proof = prove(encoder, engine.name, engine.version, reference)
        note = store_proof(cache_dir, backend, proof, mark)
        if proof.difference is not None:
            raise _refused(name, proof.difference)
    if found := rows.difference(encoder, name, proof.excluded, proof.doubled):
        row, difference = found
        raise _refused(name, shrink(encoder, name, reference, difference.text) or difference, f" (row {row} of the data)")
    return proof, note


def _refused(name: str, difference: Difference, where: str = "") -> EngineError:
    return EngineError(
        f"{name} differs from the reference on {difference.words()}{where}",
        "Use --tokenizer-engine auto, which only uses an engine proved equal.",
    )


def _mark(name: str, plugins: Plugins) -> str:
    """The hash of the plugin that offers an engine; "" of a built-in."""
    owner = plugins.registry("engine").owner(name)
    return next((info.file_hash[:16] for info in plugins.describe() if info.name == owner and info.origin != "built-in"), "")


def _engine(name: str, plugins: Plugins) -> Engine:
    return cast("Engine", plugins.registry("engine").get(name, "tokenizer.engine")())


def _load(engine: Engine, backend: Backend, threads: int, _proved: bool = False) -> Encoder:
    with guarded(f"{engine.name} {engine.version} cannot load this tokenizer"):
        return engine.load(backend.json, Path(backend.folder), threads)


def _reason(requested: str, proof: Proof, rows: SampledRows) -> str:
    chosen = "fastest engine proved equal" if requested == "auto" else "asked for and proved equal"
    over = f"{proof.strings:,} strings ({proof.bytes / 1e6:.1f} MB) and {len(rows.texts):,} rows of the data"
    rest = f"; texts with one of {len(proof.excluded):,} characters go to hf" if proof.excluded else ""
    rest += "; texts with two unknown tokens in a row go to hf" if proof.doubled is not None else ""
    return f"{proof.engine} {proof.version}: {chosen} to {proof.reference} on {over}{rest}"


def _document(proof: Proof, rows: SampledRows) -> dict[str, Any]:
    names = ("tokenizer", "engine", "version", "reference", "corpus", "strings", "bytes", "seconds")
    return {
        **{name: getattr(proof, name) for name in names},
        "excluded": len(proof.excluded),
        "doubled": proof.doubled,
        "sample_rows": len(rows.texts),
    }
