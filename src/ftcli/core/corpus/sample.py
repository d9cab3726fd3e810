"""The sample corpus: short Korean and English business texts of 280 labels, made row by row from a grammar.

A row depends on the seed and its number only, so that any part of the corpus can be made alone and the whole is streamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any

from ftcli.core.corpus.grammar import AREAS, INTENTS
from ftcli.core.corpus.material import Language, material, pair
from ftcli.errors import PublishError, UsageError
from ftcli.records import SPLITS

LABELS = len(AREAS) * len(INTENTS)
MAX_CHARACTERS = 620
HELD_OUT = 0.05
"""Share of the rows in validation, and in test; of few rows there may be none, and then no file."""

_DRAWS = Struct("<32H")
_SPREAD = 64  # room left free is the sum of two draws below this
_NOISE = 983  # of 65,536: 1.5 % of the rows are written for another label than their own
_OTHER_AREA = 19661  # 30 % name an area that is not theirs
_OTHER_INTENT = 13107  # 20 % name an intent that is not theirs
_LANGUAGES: tuple[Language, ...] = ("ko",) * 9 + ("en",) * 9 + ("mixed",) * 2
_TICKETS = 900_000_000
_TICKET_STEP = 618_033_989  # coprime to the number of tickets, so that no two rows share one


def label_names(labels: int = LABELS) -> list[str]:
    """The first `labels` label strings, "area/intent"; areas and intents are as evenly used as the number allows.

    Raises:
        UsageError: not between 2 and 280.
    """
    if not 2 <= labels <= LABELS:
        raise UsageError(f"the sample cannot have {labels} labels", f"--labels takes 2 to {LABELS}.")
    return [f"{AREAS[area].name}/{INTENTS[intent].name}" for area, intent in map(pair, range(labels))]


class Sampler:
    """Makes row `number` of the corpus of `seed`.

    Args:
        seed: any integer of up to 128 bits.
        labels: number of labels, 2 to 280.

    Raises:
        UsageError: a label count or seed outside those.
    """

    def __init__(self, seed: int, labels: int = LABELS) -> None:
        if not 0 <= seed < 1 << 128:
            raise UsageError(f"the seed {seed} is not between 0 and 2**128 - 1", "Choose a small whole number, for example 0.")
        self._names = label_names(labels)
        self._key = seed.to_bytes(16, "little")
        self._order = list(range(labels))
        random.Random(seed).shuffle(self._order)
        self._first_ticket = int.from_bytes(blake2b(self._key, digest_size=8).digest(), "little")
        self._materials = [material(language) for language in _LANGUAGES]

    def row(self, number: int) -> tuple[str, str]:
        """Text and label. Labels go round in one shuffled order: any `labels` neighbours hold every label once."""
        draws = _DRAWS.unpack(blake2b(number.to_bytes(8, "little"), digest_size=64, key=self._key).digest())
        language, noise, shift, noun, turn, opening, date, amount, reference, one, two, start, stride, area, which, topic, what = draws[:17]
        tables = self._materials[language % len(self._materials)]
        label = about = self._order[number % len(self._order)]
        if noise < _NOISE:
            about = (label + 1 + shift % (len(self._order) - 1)) % len(self._order)
        noun %= len(tables.topics[about])
        said = tables.labelled[about][noun]
        subject, ask, again = (said * 2)[turn % len(said) :][:3]
        before, after = tables.people[opening % len(tables.people)]
        ticket = 100_000_000 + (number + self._first_ticket) * _TICKET_STEP % _TICKETS
        head = f"[{tables.prefix}-{ticket}] {subject}\n{before}"
        body = [
            tables.references[reference % len(tables.references)].format(
                ticket=ticket,
                date=tables.dates[date % len(tables.dates)],
                amount=tables.amounts[amount % len(tables.amounts)],
                topic=tables.topics[about][noun],
            ),
            ask,
            again,
        ]
        if area < _OTHER_AREA:
            body.append(tables.other_areas[which % len(tables.other_areas)])
        if topic < _OTHER_INTENT:
            body.append(tables.other_intents[what % len(tables.other_intents)])
        room = MAX_CHARACTERS - one % _SPREAD - two % _SPREAD - len(head) - len(after) - 1 - sum(map(len, body)) - len(body)
        at, step = start, tables.strides[stride % len(tables.strides)]
        for place in draws[17:] + draws[17:]:
            sentence = tables.neutral[at % len(tables.neutral)]
            room -= len(sentence) + 1
            if room < 0:
                break
            body.insert(place % (len(body) + 1), sentence)
            at += step
        return f"{head}\n{' '.join(body)}\n{after}", self._names[label]


def generate(rows: int, seed: int, labels: int = LABELS, *, first: int = 0) -> Iterator[tuple[str, str]]:
    """Rows `first` to `first + rows - 1` as (text, label). Texts have at most 620 characters, 535 on average, and never repeat."""
    return map(Sampler(seed, labels).row, range(first, first + rows))


def write_sample(
    output: Path,
    rows: int,
    seed: int,
    *,
    labels: int = LABELS,
    overwrite: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write `train`, `validation` and `test` files, one {"text", "label"} object a line; all appear when all are written.

    With 20 rows a label every label occurs in every split.

    Args:
        overwrite: replace sample files that are there.
        on_progress: called with the number of rows written since its last call.

    Returns:
        rows_written, train_rows, validation_rows, test_rows, labels, mean_characters, max_characters, bytes_written, seconds,
        rows_per_second, and files (split to path).

    Raises:
        UsageError: a count that cannot be, or files in the way.
        PublishError: the folder cannot be written.
    """
    if rows < 1:
        raise UsageError(f"{rows} rows cannot be written", "--rows takes 1 and more.")
    held_out = round(rows * HELD_OUT)
    counts = (rows - 2 * held_out, held_out, held_out)
    sampler = Sampler(seed, labels)
    targets = {split: output / f"{split}.jsonl" for split, count in zip(SPLITS, counts, strict=True) if count}
    taken = [path for path in (output / f"{split}.jsonl" for split in SPLITS) if path.exists()]
    if taken and not overwrite:
        raise UsageError(f"{taken[0]} already exists", "Choose another folder, or --overwrite.")
    began = time.monotonic()
    temporary = {split: path.with_name(f".{path.name}.{os.getpid()}.tmp") for split, path in targets.items()}
    characters = longest = first = 0
    try:
        output.mkdir(parents=True, exist_ok=True)
        for split, count in zip(SPLITS, counts, strict=True):
            if not count:
                continue
            with temporary[split].open("wb", buffering=1 << 20) as file:
                for number in range(first, first + count):
                    text, label = sampler.row(number)
                    characters += len(text)
                    longest = max(longest, len(text))
                    file.write(f"{json.dumps({'text': text, 'label': label}, ensure_ascii=False)}\n".encode())
                    if on_progress and number % 1000 == 999:
                        on_progress(1000)
            first += count
        if on_progress:
            on_progress(rows % 1000)
        for split, path in targets.items():
            temporary[split].replace(path)
        for path in taken:
            if path not in targets.values():
                path.unlink()
        size = sum(path.stat().st_size for path in targets.values())
    except OSError as error:
        raise PublishError(
            f"the sample cannot be written to {output}: {error.strerror or error}", "Check free space and permissions."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            for path in temporary.values():
                path.unlink(missing_ok=True)
    seconds = time.monotonic() - began
    return {
        "rows_written": rows,
        **{f"{split}_rows": count for split, count in zip(SPLITS, counts, strict=True)},
        "labels": labels,
        "mean_characters": characters / rows,
        "max_characters": longest,
        "bytes_written": size,
        "seconds": seconds,
        "rows_per_second": rows / seconds,
        "files": {split: str(path) for split, path in targets.items()},
    }
