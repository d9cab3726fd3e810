"""8 nodes × 8 ranks as processes of one machine: each opens the same attempt, prepares or waits, and says on stdout what it did.

python rank_simulation.py FOLDER [--nodes 8] [--ranks 8] [--systems 2] [--patience 20] [--naive] [--shards 6] [--pause 0.02]

Nodes share `systems` file systems: node n has FOLDER/system-(n % systems). The processes are forked from one that has imported what they
need, wait at a gate, and start together. A line of JSON each: rank, system, what (prepared, waited, refused), resumed, hash, words.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from ftcli.core.publishing.publish import Attempt
from ftcli.errors import FtcliError

FINGERPRINT = "0123456789abcdef"


def prepare(output: Path, patience: float, shards: int, pause: float) -> dict[str, Any]:
    """As `ftcli tokenize` does it: under the lease, shard by shard."""
    try:
        with Attempt.open(output, FINGERPRINT, wait=True, patience=patience) as attempt:
            if attempt.ready is not None:
                return {"what": "waited", "hash": attempt.ready["content_hash"]}
            gone = attempt.predecessor.short if attempt.predecessor else ""
            resumed = 0
            for number in range(shards):
                name = f"shard-{number}"
                if attempt.done(name) is not None:
                    resumed += 1
                    continue
                time.sleep(pause)
                with attempt.shard(name) as shard:
                    shard.path(f"train/{number}.bin").write_bytes(bytes([number]) * 1000)
                    shard.commit([f"train/{number}.bin"], {})
                attempt.beat(shards_done=number + 1, shards=shards)
            manifest = attempt.publish({}, [f"shard-{number}" for number in range(shards)])
            return {"what": "prepared", "resumed": resumed, "hash": manifest["content_hash"], "after": gone}
    except FtcliError as error:
        return {"what": "refused", "words": error.message, "hint": error.hint}


def naively(output: Path, shards: int, pause: float) -> dict[str, Any]:
    """What launch scripts do: whoever sees no output makes it; the output is there as soon as its folder is."""
    if output.exists():
        return {"what": "waited", "hash": str(len(list(output.iterdir())))}
    time.sleep(pause)  # the sources are read
    output.mkdir(exist_ok=True)
    for number in range(shards):
        time.sleep(pause)
        (output / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    return {"what": "prepared", "resumed": 0, "hash": str(shards), "after": ""}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--systems", type=int, default=2)
    parser.add_argument("--patience", type=float, default=20)
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--naive", action="store_true")
    given = parser.parse_args()
    for system in range(given.systems):
        (given.folder / f"system-{system}").mkdir(parents=True, exist_ok=True)
    ready, gate = os.pipe(), os.pipe()
    children = []
    for rank in range(given.nodes * given.ranks):
        pid = os.fork()
        if not pid:
            os.environ["RANK"] = str(rank)
            os.close(gate[1])
            os.write(ready[1], b".")
            os.read(gate[0], 1)  # end of file: the gate is open
            system = rank // given.ranks % given.systems
            output = given.folder / f"system-{system}" / "prepared"
            did = naively(output, given.shards, given.pause) if given.naive else prepare(output, given.patience, given.shards, given.pause)
            line = json.dumps({"rank": rank, "system": system, "pid": os.getpid(), **did}) + "\n"
            os.write(sys.stdout.fileno(), line.encode())  # one call: lines of several processes do not mix
            os._exit(0)
        children.append(pid)
    for _ in children:
        os.read(ready[0], 1)
    os.close(gate[0])
    os.close(gate[1])
    for pid in children:
        os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
