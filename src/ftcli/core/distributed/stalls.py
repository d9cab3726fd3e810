"""The verdict on ranks that make no progress: pure logic over their signs of life, on a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftcli.core.distributed.pulse import Beat, End, Idle

LOOK_SECONDS = 0.2
LONGEST_LOOK = 2.0
"""The most that counts between two looks: a machine that slept, or a launcher that was stopped, has seen no rank idle meanwhile."""
START_SECONDS = 120.0
"""More than the limit that a rank may be silent before its first step: importing torch keeps a loaded machine's threads waiting."""
FOLLOW_SECONDS = 30.0
"""After a rank has failed, the others end by themselves within this, or are ended: some of torch's backends never tell them."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Why the job is ended."""

    ranks: tuple[int, ...]
    """Those that the others wait for."""
    message: str


class Stalls:
    """Looks at the ranks of one machine.

    Args:
        limit: seconds without progress, or without a sign of life, that are too many.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._silent: dict[int, Idle] = {}
        self._idle: dict[int, Idle] = {}
        self._failed = 0.0

    def look(self, passed: float, beats: Mapping[int, Beat], ends: Mapping[int, End]) -> Stall | None:
        """Called some times a second.

        Args:
            passed: seconds since the last call.
            beats: the newest of every rank that has shown any.
            ends: of the ranks that have ended in good order.
        """
        live = {rank: beat for rank, beat in beats.items() if rank not in ends}
        silent = {rank: self._of(self._silent, rank).look(passed, beat.beats) for rank, beat in live.items()}
        for rank, beat in live.items():
            if silent[rank] >= self.limit + (0.0 if beat.watched else START_SECONDS):
                return Stall((rank,), f"{_name(beat)} has sent no heartbeat for {silent[rank]:.0f} s ({self._why}): it was {beat.where}")
        idle = {rank: self._of(self._idle, rank).look(passed, (beat.marks, beat.watched)) for rank, beat in live.items()}
        over = [seconds for rank, seconds in idle.items() if live[rank].watched and seconds >= self.limit]
        if over:
            return self._stalled(live, [rank for rank, seconds in silent.items() if seconds >= self.limit / 2], max(over))
        failed = [end for end in ends.values() if end.code not in {0, 3}]
        self._failed = self._failed + min(passed, LONGEST_LOOK) if failed and live else 0.0
        if self._failed >= FOLLOW_SECONDS:
            names = ", ".join(_name(beat) for beat in live.values())
            return Stall((failed[0].rank,), f"rank {failed[0].rank} has failed, and {names} did not end in {FOLLOW_SECONDS:.0f} s")
        return None

    @property
    def _why(self) -> str:
        return f"launch.rank_timeout is {self.limit:g}"

    def _of(self, counters: dict[int, Idle], rank: int) -> Idle:
        return counters.setdefault(rank, Idle(LONGEST_LOOK))

    def _stalled(self, live: Mapping[int, Beat], silent: list[int], seconds: float) -> Stall:
        """The silent ones, else those with the fewest marks, are what the others wait for: a step needs all ranks."""
        fewest = min(beat.marks for beat in live.values())
        behind = [live[rank] for rank in silent] or [beat for beat in live.values() if beat.marks == fewest]
        told = "; ".join(f"{_name(beat)} was {beat.where}" for beat in behind)
        rest = "" if len(behind) == len(live) else ", and the others wait for it" if len(behind) == 1 else ", and the others wait for them"
        return Stall(tuple(beat.rank for beat in behind), f"no progress for {seconds:.0f} s ({self._why}): {told}{rest}")


def _name(beat: Beat) -> str:
    return f"rank {beat.rank} (pid {beat.pid})"
