"""Names choose, order does not; a clash names both plugins."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcli.errors import FtcliError, PluginError, SettingsError
from ftcli.registry import Registry


def test_a_registered_factory_is_found_by_its_name() -> None:
    registry: Registry[str] = Registry("engine")
    registry.registrar("one")("fast", "factory")

    assert registry.get("fast") == "factory"
    assert registry.owner("fast") == "one"
    assert list(registry.items()) == [("fast", "factory")]
    assert registry.names() == ["fast"]
    assert "fast" in registry
    assert "slow" not in registry


def test_two_plugins_with_one_name_clash_and_both_are_named() -> None:
    registry: Registry[str] = Registry("engine")
    registry.registrar("one")("fast", "first")

    with pytest.raises(PluginError, match="'one' and 'two' both register the engine 'fast'") as caught:
        registry.registrar("two")("fast", "second")

    assert "replace=True" in caught.value.hint
    assert registry.get("fast") == "first"


@pytest.mark.parametrize("replacement_first", [False, True])
def test_a_replacement_wins_whichever_registers_first(replacement_first: bool) -> None:
    registry: Registry[str] = Registry("engine")
    steps = [("built-in", "old", False), ("other", "new", True)]
    for plugin, factory, replace in reversed(steps) if replacement_first else steps:
        registry.registrar(plugin)("fast", factory, replace=replace)

    assert (registry.get("fast"), registry.owner("fast"), registry.names()) == ("new", "other", ["fast"])


def test_two_replacements_clash_and_both_are_named() -> None:
    registry: Registry[str] = Registry("collator")
    registry.registrar("one")("fixed", "a", replace=True)

    with pytest.raises(PluginError, match="'one' and 'two' both replace the collator 'fixed'") as caught:
        registry.registrar("two")("fixed", "b", replace=True)

    assert caught.value.hint == "Uninstall one of them."


def test_two_originals_clash_even_when_a_third_plugin_replaces_both() -> None:
    def register(order: tuple[tuple[str, bool], ...]) -> None:
        registry: Registry[str] = Registry("engine")
        for plugin, replace in order:
            registry.registrar(plugin)("fast", plugin, replace=replace)

    for order in permutations([("one", False), ("two", False), ("three", True)]):
        with pytest.raises(PluginError, match="both register"):
            register(order)


def test_an_unknown_name_shows_the_setting_the_offers_and_the_nearest() -> None:
    registry: Registry[str] = Registry("collator")
    for name in ("dynamic", "fixed"):
        registry.registrar("built-in")(name, name)

    with pytest.raises(SettingsError) as caught:
        registry.get("dynamik", "loader.collator")

    assert caught.value.message == "loader.collator = 'dynamik': no plugin provides this collator"
    assert caught.value.hint == "Available: dynamic, fixed. Did you mean 'dynamic'?"


def test_an_unknown_name_without_setting_or_neighbour_is_told_plainly() -> None:
    with pytest.raises(SettingsError) as caught:
        Registry("task").get("zzz")

    assert (caught.value.message, caught.value.hint) == ("'zzz': no plugin provides this task", "Available: .")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_registration_decides_nothing(offers: list[tuple[str, bool]], random: object) -> None:
    """Each offer comes from a plugin of its own; any order gives the same winners or an error."""

    def outcome(order: list[int]) -> object:
        registry: Registry[int] = Registry("engine")
        try:
            for plugin in order:
                name, replace = offers[plugin]
                registry.registrar(str(plugin))(name, plugin, replace=replace)
        except FtcliError:
            return "clash"
        return dict(registry.items())

    order = list(range(len(offers)))
    expected = outcome(order)
    random.shuffle(order)  # type: ignore[attr-defined]

    assert outcome(order) == expected
