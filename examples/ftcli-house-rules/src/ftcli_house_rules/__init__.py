"""A team's rules for ftcli runs: the check HOUSE01, and a variable that keeps runs of local files off the network.

What is written about the check is in `pages/HOUSE01.toml`, beside this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli import hookimpl
from ftcli.contracts import CheckKind
from ftcli.records import Check, Tweak

if TYPE_CHECKING:
    from ftcli.hookspecs import Register
    from ftcli.settings import Settings


@dataclass(frozen=True)
class Rule:
    """One setting and what the team wants of it."""

    key: str
    wanted: str
    flag: str
    holds: Callable[[Any], bool]


RULES = (
    Rule("tracking.report_to", "a tracker, so that others see the run", "--report-to mlflow", bool),
    Rule(
        "train.save_total_limit",
        "3 checkpoints at most: the disk is shared",
        "--save-total-limit 3",
        lambda limit: limit is not None and limit <= 3,
    ),
    Rule("train.seed", "42, so that runs can be compared", "--seed 42", lambda seed: seed == 42),
)
"""Replace them by yours: everything that `ftcli settings` lists can have a rule."""


def house_rules(probe: Any) -> Check:
    """Fails, naming every rule that the planned run breaks, where each value comes from, and the flags that keep it."""
    broken, evidence = [], {}
    for rule in RULES:
        section, name = rule.key.split(".")
        value = getattr(getattr(probe.settings, section), name)
        evidence[rule.key] = {"value": value, "origin": probe.origin(rule.key)}
        if not rule.holds(value):
            broken.append((rule, f"{rule.key} = {value} ({probe.origin(rule.key)}), wanted: {rule.wanted}"))
    if not broken:
        return Check("", "", "pass", f"all {len(RULES)} house rules are kept", evidence)
    words = "; ".join(said for _, said in broken)
    return Check("", "", "fail", words, evidence, f"Add {' '.join(rule.flag for rule, _ in broken)}.")


@hookimpl
def register_checks(register: Register[CheckKind]) -> None:
    register("HOUSE01", CheckKind("HOUSE01", "settings", "House rules", house_rules))


@hookimpl
def environment(settings: Settings) -> Mapping[str, Tweak]:
    """No network for a run whose tokenizer, model and data all lie on this machine."""
    named = (settings.tokenizer.path, settings.model.name_or_path, *(settings.dataset.sources or ()))
    read = [Path(each) for each in named if each is not None]
    if not read or not all(path.exists() for path in read):
        return {}
    return {"HF_HUB_OFFLINE": Tweak("1", "all that this run reads lies here: a hub that does not answer must not hold it up")}
