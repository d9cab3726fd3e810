"""Kill the whole command at random times, run it again until it is done, and compare the result with an undisturbed one."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from typing import Any

from benchmarks import process
from benchmarks.inputs import Library
from benchmarks.ways import Bench

from ftcli.records import MANIFEST_NAME

SEED = 11


class LostError(Exception):
    """An interrupted run did not end in the same result."""


def kill_and_resume(
    bench: Bench, library: Library, *, content_hash: str, seconds: float, kills: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """SIGKILL to the process group at `kills` times spread over the job, each followed by the same command again.

    Args:
        content_hash: of an undisturbed run.
        seconds: that an undisturbed run takes.

    Raises:
        LostError: another hash, or something was left behind.
        RunError: a run failed by itself.
    """
    source, tokenizer = library.get("job"), bench.tokenizer("qwen3")
    shutil.rmtree(bench.output, ignore_errors=True)
    command, environment = bench.command(source, tokenizer, bench.workers), bench.environment()
    generator, killed = random.Random(SEED), 0
    for _ in range(kills):
        after = generator.uniform(0.02, 2 / (kills + 1)) * seconds  # together about as long as one run
        while process.run_until(command, bench.cpus, environment, bench.work, after):  # it was faster: from the beginning, and sooner
            shutil.rmtree(bench.output)
            after /= 2
        killed += 1
        say(f"  killed after {after:.1f} s")
    outcome = process.run(command, bench.cpus, environment, bench.work)
    found = json.loads((bench.output / MANIFEST_NAME).read_text(encoding="utf-8"))["content_hash"]
    left = sorted(path.name for path in bench.work.iterdir() if path.name.startswith(f".{bench.output.name}"))
    if found != content_hash or left:
        raise LostError(f"after {killed} kills the content hash is {found}, undisturbed {content_hash}; left behind: {left}")
    metrics = json.loads(outcome.output.splitlines()[-1])["metrics"]
    say(
        f"  {killed} kills: the same content hash; the last run took {outcome.wall:.1f} s and went on after {metrics.get('shards_resumed')} shards"
    )
    return {"kills": killed, "seconds_of_last_run": outcome.wall, "shards_resumed": metrics.get("shards_resumed"), "content_hash": found}
