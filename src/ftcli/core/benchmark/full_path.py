"""The whole path of one configuration, in a fresh process: `ftcli train` from the texts on, on few rows and for few steps."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.benchmark.attribution import Cost, Volume
from ftcli.core.benchmark.ceilings import Ceilings, write_profile
from ftcli.core.benchmark.spread import Spread
from ftcli.core.files.manifest import hash_file
from ftcli.core.processes import dies_with_parent
from ftcli.core.reading.read import make_plan, read_shard
from ftcli.environment import compute
from ftcli.errors import TrainError, UsageError
from ftcli.fields import variable_of
from ftcli.records import MANIFEST_NAME, ShardPlan, to_json
from ftcli.settings import Settings, get, update, walk
from ftcli.sources import CLI_ONLY

COUNTED_BYTES = 500_000_000
"""Sources up to this size are read whole (some seconds); of larger ones about as much is, from here and there, and the rows are estimated from that."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a configuration: a file with the first of them (or the prepared directory), and how many there are."""

    path: Path
    rows: int
    """Of all splits."""
    trained: int
    """Of the train split."""
    exact: bool
    """Whether they were counted; else estimated from the bytes."""
    prepared: bool
    cut: int = 0
    """Rows of the file."""
    bytes: int = 0
    """Of the file."""
    shards: int = 1
    """Of all sources, as the whole run cuts them."""
    source_bytes: int = 0
    files: int = 1
    """Of all sources."""

    @property
    def mark(self) -> str:
        """Hash of the texts that are worked on."""
        return str(json.loads((self.path / MANIFEST_NAME).read_text())["content_hash"]) if self.prepared else hash_file(self.path)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the path."""

    cost: Cost
    real_tokens_per_second: float
    tokens_per_text: float
    texts_per_step: float
    """Of a full optimizer step of all processes, which may be more than were run on."""


def cut(context: Context, settings: Settings, folder: Path, rows: int) -> Texts:
    """`rows` training texts from all of the sources with their labels, as JSON lines in `folder`; prepared data stay where they are.

    Of sources that are too large to be read whole they come from shards here and there.

    Raises:
        UsageError: there is no source, or one of more than texts and one label.
        DataError: a source cannot be read.
    """
    sources = settings.dataset.sources or []
    if len(sources) == 1 and (manifest := Path(sources[0]) / MANIFEST_NAME).exists():
        made = json.loads(manifest.read_text(encoding="utf-8"))
        total = sum(split["rows"] for split in made["splits"].values())
        return Texts(Path(sources[0]), total, _taught(made), exact=True, prepared=True)
    if not sources:
        raise UsageError(
            "a configuration has no data: dataset.sources is unset", 'Add [dataset] sources = ["corpus.jsonl"], or give --dataset.'
        )
    more = "conversations" if settings.train.mode == "sft" else "several label columns" if settings.dataset.label_columns else None
    if more is not None:
        raise UsageError(
            f"a benchmark rewrites the texts it measures, with at most one label, but these sources have {more}",
            "Prepare them (ftcli tokenize) and give that directory; for sweep tokenize, which measures plain texts, remove that setting.",
        )
    formats = context.plugins.registry("source")
    plan = make_plan(settings, formats)
    names = (settings.dataset.text_column, settings.dataset.label_column)
    columns = {"text": names[0], "pair": plan.columns.pair, "label": names[1]}
    columns = {key: name for key, name in columns.items() if name is not None}
    total, seen, trained, read, spread = sum(shard.size for shard in plan.shards), 0, 0, 0, Spread(rows)
    shards = plan.shards if plan.bytes <= COUNTED_BYTES else here_and_there(plan.shards)
    for shard in shards:
        for _, batch in read_shard(shard, plan.columns, settings, formats):
            seen += len(batch)
            if shard.split == "train":
                trained += len(batch)
                spread.add(batch.select(list(columns)))
        read += shard.size
        if plan.bytes > COUNTED_BYTES <= plan.bytes * read / total and trained >= rows:
            break
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "texts.jsonl"
    lines = [json.dumps({columns[key]: value for key, value in row.items()}, ensure_ascii=False) + "\n" for row in spread]
    target.write_text("".join(lines), encoding="utf-8")
    scale = total / read if read else 1.0
    return Texts(
        target,
        round(seen * scale),
        round(trained * scale),
        exact=read >= total,
        prepared=False,
        cut=len(lines),
        bytes=target.stat().st_size,
        shards=len(plan.shards),
        source_bytes=plan.bytes,
        files=len(plan.files),
    )


def here_and_there(shards: Sequence[ShardPlan]) -> list[ShardPlan]:
    """The same, so that any number of the first of them lie apart: the first, the middle one, those in the middle of both halves …"""
    bits = max(1, (len(shards) - 1).bit_length())
    return [shards[place] for place in sorted(range(len(shards)), key=lambda place: f"{place:0{bits}b}"[::-1])]


def volume_of(settings: Settings, texts: Texts, found: Measured) -> Volume:
    """How many texts a whole run prepares and trains on: by epochs, or by `max_steps`.

    Args:
        found: a run of the configuration on some of the texts, which says how many a step has.
    """
    train = settings.train
    held_back = 1.0 if texts.prepared else 1 - settings.dataset.validation_fraction - settings.dataset.test_fraction
    trained = texts.trained * held_back * train.num_train_epochs
    if train.max_steps > 0:
        trained = train.max_steps * min(found.texts_per_step, texts.trained * held_back)
    return Volume(0.0 if texts.prepared else float(texts.rows), float(trained))


def scaled(settings: Settings, texts: Texts, output: Path, steps: int) -> Settings:
    """The same configuration on the cut texts for `steps` optimizer steps, without evaluations, checkpoints and trackers."""
    changes: dict[str, Any] = {
        "dataset.sources": [str(texts.path)],
        "dataset.source_format": None,
        "train.output_dir": output,
        "train.max_steps": steps,
        "train.eval_strategy": "no",
        "train.do_predict": False,
        "train.save_strategy": "no",
        "train.load_best_model_at_end": None,
        "train.patience": None,
        "train.push_to_hub": None,
        "train.verify": False,
        "train.on_unhealthy": "warn",
        "train.resume_from_checkpoint": None,
        "runtime.overwrite": True,
        "runtime.floor": "never",
        "tracking.report_to": None,
    }
    return update(settings, changes)


def environment(context: Context) -> dict[str, str]:
    """This process's variables without those that are settings, which a configuration must not inherit, and without what ftcli itself set."""
    own = {variable_of(section, name) for section, name, _ in walk()} | {"FTCLI_PROFILE", "FTCLI_CONFIG"}
    ours = compute(context.plugins, context.settings, context.machine)
    return {name: value for name, value in os.environ.items() if name not in own and not (name in ours and ours[name].value == value)}


def plugin_options(context: Context) -> tuple[str, ...]:
    """Words that give a child the plugins of this process."""
    folder, allow = context.plugins.plugins_dir, context.plugins.allow
    return ("--plugins-dir", str(folder)) if folder is not None else ("--no-plugins",) if allow == () else ()


def run_path(
    settings: Settings, folder: Path, variables: Mapping[str, str], options: tuple[str, ...] = (), ceilings: Ceilings = frozenset()
) -> Measured:
    """Run the configuration once and clear away what it wrote.

    Args:
        folder: for everything that the run writes; made, and removed at the end.
        options: further words of the command line (plugins).
        ceilings: what of the settings came from a profile.

    Raises:
        TrainError: the run failed; with its own words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        report = run_child("train", settings, folder, variables, options, ceilings)
        manifest = json.loads((folder / "output" / "prepared" / MANIFEST_NAME).read_text()) if _was_raw(folder) else None
        return read_measured(report, manifest, settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_child(
    command: str,
    settings: Settings,
    folder: Path,
    variables: Mapping[str, str],
    options: tuple[str, ...],
    ceilings: Ceilings,
) -> Mapping[str, Any]:
    """The JSON document of `ftcli COMMAND` with these settings, in a fresh process.

    Raises:
        TrainError: it failed; with its own words.
    """
    config, profile = folder / "config.json", folder / "ceilings.toml"
    bounded = write_profile(settings, ceilings, profile)
    config.write_text(json.dumps(tree(settings, without=bounded)), encoding="utf-8")
    words = [command, "--config", str(config), "--profile", str(profile), "--json", "--quiet", *options]
    words += [word for key in sorted(CLI_ONLY) if get(settings, key) for word in ("--set", f"{key}=true")]
    done = dies_with_parent.run(words, variables)
    document: Mapping[str, Any] = {}
    if done.stdout.strip():
        document = json.loads(done.stdout.splitlines()[-1])
    if done.returncode:
        error = document.get("error") or {"message": (done.stderr.strip() or "no words").splitlines()[-1], "hint": ""}
        raise TrainError(f"a configuration does not run: {error['message']}", error["hint"] or "Try it with ftcli train.")
    return document


def tree(settings: Settings, without: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """What a configuration file says for these settings: those that are not the defaults, and that a file may set; `without` those of a profile."""
    default, found = Settings(), dict[str, dict[str, Any]]()
    for section, name, _ in walk():
        key = f"{section}.{name}"
        if key not in CLI_ONLY and key not in without and get(settings, key) != get(default, key):
            found.setdefault(section, {})[name] = to_json(get(settings, key))
    return found


def read_measured(report: Mapping[str, Any], manifest: Mapping[str, Any] | None, settings: Settings) -> Measured:
    """Seconds a text of a run from its report and from the manifest of what it prepared (None: it was prepared before).

    Training is timed without the first step; preparing from the start to the end of encoding, without planning and proof.
    """
    run = report["metrics"]
    rate, steps, epochs = run["real_tokens_per_second"], run.get("steps"), run.get("epochs")
    if not rate or not steps:
        raise TrainError("a run was too short to be timed", "Raise --steps or --rows.")
    made = manifest or json.loads((Path((settings.dataset.sources or [""])[0]) / MANIFEST_NAME).read_text(encoding="utf-8"))
    split, metrics = made["splits"]["train"], made.get("metrics") or {}
    texts = _taught(made)
    tokens = split["tokens"] / texts
    speed = metrics.get("examples_per_second")
    prepare = 1 / speed if manifest is not None and speed else 0.0
    full = (report.get("details") or {}).get("rows_per_step")
    a_step = texts * (epochs or 0.0) / steps if full is None else full * texts / split["rows"]
    return Measured(Cost(prepare, tokens / rate), rate, tokens, a_step)


def _taught(manifest: Mapping[str, Any]) -> int:
    """Texts in the train split, whose rows may hold several each, or a part: as many of all that were prepared as it has of the rows."""
    rows: dict[str, int] = {name: int(split["rows"]) for name, split in manifest["splits"].items()}
    written: int = (manifest.get("metrics") or {}).get("rows_written") or sum(rows.values())
    return max(1, round(written * rows["train"] / max(1, sum(rows.values()))))


def _was_raw(folder: Path) -> bool:
    return (folder / "output" / "prepared" / MANIFEST_NAME).exists()
