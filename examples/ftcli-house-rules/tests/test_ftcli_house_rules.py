"""Run with: pytest"""

from pathlib import Path
from types import SimpleNamespace

import ftcli_house_rules
import pytest

from ftcli.core.verify.catalogue import page_of
from ftcli.pluginmanager import Plugins
from ftcli.settings import Settings, update

KEPT = {"tracking.report_to": ["mlflow"]}


def verdict(**changes):
    settings = update(Settings(), {**KEPT, **{key.replace("__", "."): value for key, value in changes.items()}})
    return ftcli_house_rules.house_rules(SimpleNamespace(settings=settings, origin=lambda key: "--flag"))


def test_a_run_that_keeps_the_rules_passes() -> None:
    check = verdict()

    assert check.status == "pass"
    assert check.evidence["train.save_total_limit"] == {"value": 2, "origin": "--flag"}


@pytest.mark.parametrize(
    ("key", "value", "flag"),
    [
        ("tracking__report_to", None, "--report-to"),
        ("train__save_total_limit", None, "--save-total-limit 3"),
        ("train__save_total_limit", 50, "--save-total-limit 3"),
        ("train__seed", 7, "--seed 42"),
    ],
)
def test_a_broken_rule_is_named_with_its_value_origin_and_flag(key, value, flag) -> None:
    check = verdict(**{key: value})

    assert check.status == "fail"
    assert f"{key.replace('__', '.')} = {value} (--flag)" in check.summary
    assert flag in check.fix


def test_several_broken_rules_are_named_at_once() -> None:
    check = verdict(tracking__report_to=None, train__save_total_limit=9)

    assert "tracking.report_to" in check.summary
    assert check.fix == "Add --report-to mlflow --save-total-limit 3."


def test_the_check_has_a_page() -> None:
    plugins = Plugins(allow=())
    ftcli_house_rules.register_checks(plugins.registry("check").registrar("here"))

    assert "--config team.toml" in page_of(plugins.registry("check").get("HOUSE01")).fix


def test_a_run_of_local_files_is_kept_off_the_network_and_no_other(tmp_path: Path) -> None:
    local = update(Settings(), {"tokenizer.path": str(tmp_path)})
    hub = update(local, {"model.name_or_path": "Qwen/Qwen3-0.6B"})

    assert ftcli_house_rules.environment(local)["HF_HUB_OFFLINE"].value == "1"
    assert ftcli_house_rules.environment(hub) == {}
    assert ftcli_house_rules.environment(Settings()) == {}
