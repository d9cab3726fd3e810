"""A key that stands twice in a config file is refused: the last one would win without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftcli.configfile import load_file
from ftcli.errors import SettingsError

TWICE = {
    "a.yaml": ("train:\n  learning_rate: 1e-4\n  seed: 1\n  learning_rate: 1e-3\n", "learning_rate is defined twice, again in line 4"),
    "b.yaml": ("datasets:\n  - path: a\n    path: b\n", "path is defined twice, again in line 3"),
    "c.yml": ("train: {seed: 1}\ntrain: {seed: 2}\n", "train is defined twice, again in line 2"),
    "d.json": ('{"train": {"seed": 1, "seed": 2}}', "seed is defined twice"),
    "e.toml": ("[train]\nseed = 1\nseed = 2\n", "Cannot overwrite a value"),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_key_that_stands_twice_is_named(name: str, tmp_path: Path) -> None:
    text, said = TWICE[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load_file(tmp_path / name)
    assert said in caught.value.message


def test_a_key_may_stand_again_in_another_mapping_or_beside_what_is_merged(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "base: &base\n  seed: 1\n  rate: 2\nmore: &more\n  <<: *base\n  seed: 3\ntrain:\n  <<: *more\n  seed: 4\nagain: *more\n",
        encoding="utf-8",
    )
    assert load_file(file)["train"] == {"seed": 4, "rate": 2}
    file.write_text("", encoding="utf-8")
    assert load_file(file) == {}
