"""The names of labels as they are given: in id order, or each behind the value that stands in the rows, 0=negative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def by_value(given: Sequence[str]) -> Mapping[str, str] | None:
    """Value in the rows → name, where every name has one; None where the names are what the rows hold, or their ids.

    >>> by_value(["0=negative", "1=positive"])
    {'0': 'negative', '1': 'positive'}
    >>> by_value(["negative", "1=positive"]), by_value(["=", "a="])
    (None, None)
    """
    pairs = [entry.partition("=") for entry in given]
    return {value: name for value, _, name in pairs} if all(value and name for value, _, name in pairs) else None


def in_id_order(given: Sequence[str]) -> list[str]:
    """The names of the classes. Values of one name are one class.

    >>> in_id_order(["1=bad", "2=bad", "3=good"]), in_id_order(["bad", "good"])
    (['bad', 'good'], ['bad', 'good'])
    """
    named = by_value(given)
    return list(given) if named is None else list(dict.fromkeys(named.values()))
