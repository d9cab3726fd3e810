"""Sums over shards, the law that nothing is lost, and the words for a speed."""

from __future__ import annotations

from typing import Any

import pytest

from ftcli.core.prepare.tally import LISTED, Tally, listed, rating
from ftcli.errors import DataError


def record(
    shard: int, read: int = 10, filtered: int = 2, *, path: str = "a", lengths: dict[str, int] | None = None, **counts: int
) -> dict[str, Any]:
    """What a shard's worker reports, as JSON gives it back."""
    kept = read - filtered
    every = {
        "rows_read": read,
        "rows_kept": kept,
        "rows_filtered": filtered,
        "rows_truncated": 0,
        "tokens_cut": 0,
        "texts_split": 0,
        "parts_added": 0,
    }
    every |= counts
    return {
        "shard": shard,
        "tally": {
            "counts": every,
            "rows": {"train": kept},
            "tokens": {"train": 4 * kept},
            "lengths": lengths or {"4": kept},
            "labels": {"0": kept},
            "sources": {path: every},
            "seconds": {"read": 1.0, "encode": 2.0, "write": 0.5},
            "texts_by_reference": 1,
            "texts_audited": 3,
            "failures": [f"shard {shard}"],
        },
        "files": [{"path": "train/data-00000-of-00001.arrow", "bytes": 100}, {"path": "test/data-00000-of-00001.arrow", "bytes": 7}],
    }


def test_shards_are_summed_in_their_order_however_they_come():
    tally = Tally.of([record(1, path="b"), record(0, path="a")])
    assert dict(tally.rows) == {"train": 16}
    assert dict(tally.output_bytes) == {"train": 200, "test": 14}
    assert [source["path"] for source in tally.details(None, 8)["sources"]] == ["a", "b"]
    assert tally.failures == ["shard 0", "shard 1"]
    metrics = tally.metrics(slots=None, workers=2, source_bytes=1_000)
    assert (metrics["rows_read"], metrics["rows_written"], metrics["rows_filtered"], metrics["rows_rejected"]) == (20, 16, 4, 0)
    assert (metrics["tokens"], metrics["bytes_written"], metrics["texts_by_reference"], metrics["packing_waste"]) == (64, 214, 2, None)
    assert metrics["texts_audited"] == 6
    assert (metrics["seconds_read"], metrics["seconds_encode"], metrics["seconds_write"]) == (1.0, 2.0, 0.5)


@pytest.mark.parametrize(
    "broken",
    [
        record(0, lengths={"4": 7}),  # a row was lost on the way to the file
        record(0, parts_added=1),  # a part of a split text was lost
        record(0, rows_kept=9),  # kept and filtered are not what was read
        record(0, rows_rejected=1),  # a row is rejected and kept
        {**record(0), "tally": {**record(0)["tally"], "sources": {"b": record(0, rows_filtered=1, rows_rejected=2)["tally"]["counts"]}}},
    ],
    ids=("lost row", "lost part", "wrong count", "rejected and kept", "the sources say otherwise"),
)
def test_rows_that_do_not_add_up_are_never_published(broken):
    with pytest.raises(DataError, match="the row counts do not add up"):
        Tally.of([record(1), broken])


def test_rejected_rows_are_counted_in_all_and_by_source():
    tally = Tally.of([record(0, path="a"), record(1, read=10, filtered=2, path="b", rows_read=13, rows_rejected=3)])
    metrics = tally.metrics(slots=None, workers=1, source_bytes=1)
    assert (metrics["rows_read"], metrics["rows_rejected"], metrics["rows_written"], metrics["rows_filtered"]) == (23, 3, 16, 4)
    assert [source["rows_rejected"] for source in tally.details(None, 8)["sources"]] == [0, 3]


def test_of_many_sources_the_manifest_lists_those_that_lost_rows_and_the_report_no_more_than_a_page():
    lost = {f"{number:04}": {"rows_filtered": 1} for number in range(100, 1_000, 3)}
    records = [
        record(number, path=f"{number:04}", filtered=lost.get(f"{number:04}", {}).get("rows_filtered", 0)) for number in range(1_000)
    ]
    tally = Tally.of(records)
    manifest = tally.details(None, 8)
    assert [source["path"] for source in manifest["sources"]] == list(lost)  # 300, so that none is left out whose rows were not all written
    assert manifest["further_sources"] == {"files": 700, "rows_read": 7_000, "rows_written": 7_000, "rows_rejected": 0, "rows_filtered": 0}
    shown = listed(manifest)
    assert [source["path"] for source in shown["sources"]] == list(lost)[:LISTED]
    assert shown["further_sources"] == {"files": 800, "rows_read": 8_000, "rows_written": 7_900, "rows_rejected": 0, "rows_filtered": 100}
    few = Tally.of(records[:LISTED]).details(None, 8)
    assert [source["path"] for source in few["sources"]] == [f"{number:04}" for number in range(LISTED)]  # as they were read
    assert "further_sources" not in few
    assert listed(few) == few


def test_waste_is_the_share_of_slots_without_a_token():
    assert Tally.of([record(0)]).metrics(slots=64, workers=1, source_bytes=1)["packing_waste"] == 0.5


def test_speeds_count_what_was_done_in_the_time():
    speeds = Tally.of([record(0)]).speeds(seconds=2.0, source_bytes=3_000_000)
    assert speeds == {"examples_per_second": 5.0, "megabytes_per_second": 1.5, "tokens_per_second": 16.0}


def test_nothing_done_has_no_speed():
    assert set(Tally.of([]).speeds(seconds=0.0, source_bytes=0).values()) == {None}


def test_the_histogram_holds_every_row():
    lengths = {str(length): length for length in range(1, 500)}
    details = Tally.of([record(0, read=sum(lengths.values()), filtered=0, lengths=lengths)]).details(["x", "y"], 512)
    assert sum(details["lengths"]["counts"]) == sum(lengths.values())
    assert len(details["lengths"]["edges"]) == len(details["lengths"]["counts"]) + 1 == 40
    assert details["lengths"]["counts"][0] == sum(range(1, 14))  # 13 lengths a bin
    assert details["lengths"]["edges"] == sorted(set(details["lengths"]["edges"]))
    assert details["labels"] == {"names": ["x", "y"], "counts": [sum(lengths.values()), 0]}


@pytest.mark.parametrize("lengths", [{"0": 8}, {"1": 8}, {"1": 4, "2": 4}])
def test_the_histogram_of_very_short_texts_has_edges_that_rise(lengths):
    histogram = Tally.of([record(0, lengths=lengths)]).details(None, 8)["lengths"]
    assert sum(histogram["counts"]) == 8
    assert histogram["edges"] == sorted(set(histogram["edges"]))
    assert len(histogram["edges"]) == len(histogram["counts"]) + 1


def test_tokens_per_text_count_what_was_cut():
    assert Tally.of([record(0, tokens_cut=80)]).tokens_per_text == (32 + 80) / 8
    assert Tally.of([]).tokens_per_text == 0.0


@pytest.mark.parametrize(
    ("speed", "word"),
    [(23_184, "very fast"), (20_000, "very fast"), (19_999, "fast"), (10_000, "fast"), (5_000, "normal"), (4_999, "slow"), (0.5, "slow")],
)
def test_the_rating_is_the_word_of_its_band(speed, word):
    assert rating(speed, 200, 20_000).startswith(f"{word} (")


def test_no_rating_without_a_speed_or_for_long_or_few_texts():
    assert rating(None, 200, 100_000) is None
    assert rating(50_000, 1_001, 100_000) is None
    assert rating(50_000, 1_000, 100_000) is not None
    assert rating(1_990, 200, 6_458) is None  # its engine had started 2 s before
    assert rating(50_000, 200, 6_458).startswith("very fast")
