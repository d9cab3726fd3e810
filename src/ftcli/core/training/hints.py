"""What stands out in how a run spends its time, in one sentence with what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ftcli.settings import Settings

LEAST_STEPS = 20
"""Before so many steps nothing is said: the first ones fill caches and start workers."""
LIMITS = {"data_wait": 0.15, "evaluation": 0.4, "checkpoint": 0.2, "logging": 0.1, "communication": 0.3}
"""Share of the time from which a part stands out."""
PADDED = 0.35
"""Share of the slots from which padding stands out: random batches of texts of alike length stay under 0.3."""


def standing_out(
    seconds: Mapping[str, float], padding_share: float | None, steps: int, settings: Settings, *, once: Collection[str] = ()
) -> dict[str, str]:
    """Part → sentence, for every part that takes more of the time than it should.

    Args:
        seconds: by part, of the same stretch of the run.
        steps: optimizer steps of that stretch.
        once: parts that came no more than once in a run that has ended.
    """
    whole = sum(seconds.values())
    if steps < LEAST_STEPS or whole <= 0:
        return {}
    shares = {part: seconds.get(part, 0.0) / whole for part in LIMITS}
    larger = "in larger batches (--per-device-eval-batch-size)"
    advice = {
        "data_wait": ("the model waits for data", _loader(settings)),
        "evaluation": ("evaluation takes", f"evaluate {larger}")
        if "evaluation" in once
        else ("evaluations take", f"evaluate less often (--eval-steps) or {larger}"),
        "checkpoint": ("the only checkpoint takes", "leave it out (--save-strategy no), the model is saved without it")
        if "checkpoint" in once
        else ("checkpoints take", "save less often (--save-steps)"),
        "logging": ("logging takes", f"raise --logging-steps (now {settings.train.logging_steps:g})"),
        "communication": ("this process waits for the others", "look for a slower device, or one with longer rows"),
    }
    found = {
        part: f"{words} {shares[part]:.0%} of the time: {remedy}" for part, (words, remedy) in advice.items() if shares[part] > LIMITS[part]
    }
    if padding_share is not None and padding_share > PADDED:
        found["padding"] = f"{padding_share:.0%} of the slots are padding: --collator bucketed puts rows of similar length together"
    return found


def _loader(settings: Settings) -> str:
    loader = settings.loader
    if not loader.num_workers:
        return "raise --dataloader-num-workers (now 0)"
    if (loader.prefetch_factor or 2) < 8:
        return (
            f"raise --dataloader-prefetch-factor (now {loader.prefetch_factor or 2}) or --dataloader-num-workers (now {loader.num_workers})"
        )
    return f"raise --dataloader-num-workers (now {loader.num_workers}), or look for a slow collator (ftcli benchmark batch)"
