"""Bad rows and bad files: named in strict mode, put aside and accounted for under quarantine, never changed and never lost in silence."""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import json
import lzma
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import load_dataset, load_from_disk
from ftcli.plugins import jsonl
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bad_corpus import CASES, GOOD, Case, arrow, parquet
from ftcli.core.files import streams
from ftcli.core.files.manifest import check_published
from ftcli.errors import DataError, FtcliError
from ftcli.records import BadCode
from reading import accounted, refusal, write
from reading import rows as read_rows
from reliability import size
from timing import PATIENCE, bytecodes
from tokenizing import corpus, ids, left_behind, manifest, prepare, small_tokenizers, without_plots
from tokenizing import write as write_jsonl

EXAMPLES = size(40, 11_200)
"""Of each of nine formats."""
__all__ = ["small_tokenizers", "without_plots"]
ALL = {"dataset__on_bad": "quarantine", "dataset__max_bad": 1.0}


@pytest.fixture
def folder(small_tokenizers: Mapping[str, Path], without_plots: None) -> Path:
    return small_tokenizers["bpe"]


def quarantined(folder: Path, source: Path, output: Path, **dataset: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metrics and rejects of a run that may reject everything but one row."""
    report = prepare(folder, source, output, **ALL, **{f"dataset__{name}": value for name, value in dataset.items()})
    file = output / "rejects.jsonl"
    rejects = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    metrics = dict(report.metrics)
    assert metrics["rows_read"] == metrics["rows_written"] + metrics["rows_rejected"] + metrics["rows_filtered"]
    assert metrics["rows_rejected"] == len(rejects)
    per_source = Counter(reject["path"] for reject in rejects)
    assert {part["path"]: part["rows_rejected"] for part in report.details["sources"] if part["rows_rejected"]} == dict(per_source)
    return metrics, rejects


@pytest.mark.fault
@pytest.mark.reliability(24, "60 bad files: strict mode names the first bad row by file, line and byte")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_strict_mode_names_the_first_bad_row(case: Case, folder: Path, tmp_path: Path) -> None:
    file = write(tmp_path / case.file, case.content)
    values = {f"dataset__{name}": value for name, value in case.settings.items()}
    if case.strict:
        with pytest.raises(DataError) as caught:
            prepare(folder, file, tmp_path / "out", **values)
        assert caught.value.hint
        for part in case.strict:
            assert part.replace("{file}", str(file)) in caught.value.message
        assert not (tmp_path / "out").exists()
    else:
        assert tuple(read_rows(file, **case.settings)) == case.texts
        assert prepare(folder, file, tmp_path / "out", **values).metrics["rows_written"] == len(case.texts)


@pytest.mark.fault
@pytest.mark.reliability(24, "60 bad files: quarantine keeps every good row and accounts for every bad one")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_quarantine_keeps_good_rows_and_accounts_for_bad_ones(case: Case, folder: Path, tmp_path: Path) -> None:
    file = write(tmp_path / case.file, case.content)
    values = {name: value for name, value in case.settings.items() if name != "label_names"}
    if case.rejects is None:
        with pytest.raises(DataError) as caught:
            quarantined(folder, file, tmp_path / "out", **case.settings)
        assert case.strict[-1].replace("{file}", str(file)) in caught.value.message
        return
    metrics, rejects = quarantined(folder, file, tmp_path / "out", **case.settings)
    assert tuple(reject["reason_code"] for reject in rejects) == case.rejects
    assert metrics["rows_written"] == len(case.texts)
    clean = write_jsonl(tmp_path / "clean.jsonl", case.texts)
    prepare(folder, clean, tmp_path / "clean", **({} if "label_column" not in case.settings else {"tokenizer__add_eos": False}))
    assert ids(tmp_path / "out") == ids(tmp_path / "clean")
    if "label_names" not in case.settings and not {"too-many-tokens"} & set(case.rejects):
        kept = read_rows(file, on_bad="quarantine", **values)
        assert tuple(row[0] if isinstance(row, tuple) else row for row in kept) == case.texts
    check_places(file, rejects)


def check_places(file: Path, rejects: list[dict[str, Any]]) -> None:
    """Every reject can be found again by its line and bytes."""
    if file.suffix in {".parquet", ".arrow"}:
        assert all(reject["row"] for reject in rejects)
        return
    data = file.read_bytes()
    if file.suffix in streams.CODECS:
        data = pa.CompressedInputStream(pa.OSFile(str(file)), streams.CODECS[file.suffix]).read()
    for reject in rejects:
        assert reject["path"] == str(file)
        raw = data[reject["byte_start"] : reject["byte_start"] + reject["byte_len"]]
        assert reject["line"] == data.count(b"\n", 0, reject["byte_start"]) + 1
        assert base64.b64decode(reject["raw"]) == raw[:4096]
        assert reject["sha256"] == hashlib.sha256(raw).hexdigest()


def test_the_corpus_has_sixty_files_and_every_reason() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    templates = {"template"}  # the reason that only a chat template gives: test_sft.py
    assert {code for case in CASES for code in case.rejects or ()} == set(BadCode.__args__) - templates  # type: ignore[attr-defined]


NAIVE = {
    "numbers for text are taken": ("a.jsonl", b'{"text": 5}\n{"text": 6}\n', [5, 6]),
    "null for text is taken": ("a.jsonl", b'{"text": "a"}\n{"text": null}\n', ["a", None]),
    "a missing text is taken": ("a.jsonl", b'{"text": "a"}\n{"x": 1}\n', ["a", None]),
    "words become nothing": ("a.csv", b"text\nNA\nb\n", [None, "b"]),
    "a long number is rounded": ("a.jsonl", b'{"text": 123456789012345678901234567890}\n', [1.2345678901234568e29]),
}


@pytest.mark.fault
@pytest.mark.reliability(24, "datasets.load_dataset changes such rows without a word", control=True)
@pytest.mark.parametrize("name", NAIVE)
def test_positive_control_load_dataset_changes_rows_in_silence(name: str, tmp_path: Path) -> None:
    file, content, expected = NAIVE[name]
    path = write(tmp_path / file, content)
    loaded = load_dataset("csv" if file.endswith("csv") else "json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["text"][:] == expected
    if file.endswith("csv"):
        assert read_rows(path) == ["NA", "b"]
    else:
        with pytest.raises(DataError):
            read_rows(path)


def mixed(path: Path, rows: int = 600) -> Path:
    """A bad row in every 50, of five kinds; two source files would share a shard."""
    bad = ['{"text": 5}', "{bro", '{"text": "a", "text": "b"}', '{"text": "' + "zebra " * 90 + '"}', "[é]"]
    lines = [json.dumps({"text": text}) for text in corpus(rows)]
    for place in range(7, rows, 50):
        lines[place] = bad[place // 50 % len(bad)]
    return write(path, "\n".join(lines) + "\n")


TIGHT = {"dataset__shard_bytes": 6_000, "dataset__max_row_tokens": 120}


@pytest.mark.fault
@pytest.mark.reliability(24, "the rejects file is the same whatever the workers, batches and interruptions")
def test_rejects_and_rows_are_the_same_bytes_whatever_the_workers_and_interruptions(folder: Path, tmp_path: Path, monkeypatch) -> None:
    source = mixed(tmp_path / "a.jsonl")
    prepare(folder, source, tmp_path / "one", **ALL, **TIGHT)
    expected = manifest(tmp_path / "one")
    assert expected["metrics"]["rows_rejected"] == 12
    prepare(folder, source, tmp_path / "two", **ALL, **TIGHT, dataset__num_proc=2, dataset__batch_size=7)
    with pytest.raises(DataError, match="rows read cannot be used"):
        prepare(folder, source, tmp_path / "three", **{**ALL, "dataset__max_bad": 0.019}, **TIGHT)
    assert left_behind(tmp_path / "three")
    report = prepare(folder, source, tmp_path / "three", **ALL, **TIGHT)
    assert report.metrics["shards_resumed"] > 0
    for name in ("two", "three"):
        assert manifest(tmp_path / name)["content_hash"] == expected["content_hash"]
        assert (tmp_path / name / "rejects.jsonl").read_bytes() == (tmp_path / "one" / "rejects.jsonl").read_bytes()
    assert not left_behind(tmp_path / "three")
    check_published(tmp_path / "one")
    entry = next(entry for entry in expected["files"] if entry["path"] == "rejects.jsonl")
    assert entry["bytes"] == (tmp_path / "one" / "rejects.jsonl").stat().st_size
    rejects = [json.loads(line) for line in (tmp_path / "one" / "rejects.jsonl").open(encoding="utf-8")]
    assert [reject["line"] for reject in rejects] == list(range(8, 600, 50))
    check_places(source, rejects)
    assert len(load_from_disk(str(tmp_path / "one"))["train"]) == 588


def test_a_damaged_part_of_the_rejects_makes_its_shard_again(folder: Path, tmp_path: Path) -> None:
    source = mixed(tmp_path / "a.jsonl")
    with pytest.raises(DataError):
        prepare(folder, source, tmp_path / "out", **{**ALL, "dataset__max_bad": 0.019}, **TIGHT)
    (attempt,) = left_behind(tmp_path / "out")
    parts = sorted((tmp_path / attempt / "records").glob("*.rejects.jsonl"))
    parts[0].write_bytes(parts[0].read_bytes()[:-5])
    prepare(folder, source, tmp_path / "out", **ALL, **TIGHT)
    prepare(folder, source, tmp_path / "whole", **ALL, **TIGHT)
    assert (tmp_path / "out" / "rejects.jsonl").read_bytes() == (tmp_path / "whole" / "rejects.jsonl").read_bytes()


def test_a_part_of_the_rejects_that_is_damaged_in_its_middle_makes_its_shard_again(folder: Path, tmp_path: Path) -> None:
    bad = ["{" + "x" * 4_000] * 40
    source = write(tmp_path / "a.jsonl", "\n".join([*bad, *(json.dumps({"text": text}) for text in corpus(60))]) + "\n")
    with pytest.raises(DataError, match="40 of 100 rows read"):
        prepare(folder, source, tmp_path / "out", **{**ALL, "dataset__max_bad": 0.3})
    (attempt,) = left_behind(tmp_path / "out")
    (part,) = (tmp_path / attempt / "records").glob("*.rejects.jsonl")
    data = bytearray(part.read_bytes())
    assert len(data) > 1 << 17  # its first and last 64 KiB stay as they are
    place = data.index(b"eHh4", len(data) // 2)  # of the bad row's bytes, in base64
    data[place + 1] ^= 1
    part.write_bytes(data)
    prepare(folder, source, tmp_path / "out", **ALL)
    prepare(folder, source, tmp_path / "whole", **ALL)
    assert (tmp_path / "out" / "rejects.jsonl").read_bytes() == (tmp_path / "whole" / "rejects.jsonl").read_bytes()


def test_rows_that_are_bad_after_reading_are_placed_beside_those_that_were_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader finds its bad rows block by block, while the places of the others are already asked for."""
    monkeypatch.setattr(streams, "BLOCK", 2048)
    lines = [json.dumps({"text": f"row {number}"}) for number in range(1, 401)]
    for number in (8, 250, 350):
        lines[number - 1] = json.dumps({"text": f"row {number} " + "long " * 200})
    for number in (100, 200, 300):
        lines[number - 1] = "not json"
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines) + "\n")
    _, rejects = quarantined(folder, source, tmp_path / "out", max_row_tokens=100, batch_size=20)
    assert [(reject["line"], reject["reason_code"]) for reject in rejects] == [
        (number, "not-json" if number in {100, 200, 300} else "too-many-tokens") for number in (8, 100, 200, 250, 300, 350)
    ]
    assert all(
        f"row {reject['line']} ".encode() in base64.b64decode(reject["raw"])
        for reject in rejects
        if reject["reason_code"] == "too-many-tokens"
    )


def test_too_many_bad_rows_are_refused_with_figures_places_and_the_way_on(folder: Path, tmp_path: Path) -> None:
    source = mixed(tmp_path / "a.jsonl")
    with pytest.raises(DataError) as caught:
        prepare(folder, source, tmp_path / "out", dataset__on_bad="quarantine", dataset__max_bad="1.9%", dataset__max_row_tokens=120)
    message = caught.value.message
    assert "12 of 600 rows read cannot be used (2.0000%), more than dataset.max_bad allows (1.9000%); nothing was published" in message
    for line, reason in ((8, "'text' is 5"), (58, "not JSON"), (108, "the column 'text' exists 2 times")):
        assert f"{source}:{line} (byte " in message
        assert reason in message
    kept = Path(caught.value.hint.split("All of them are listed in ")[1].split(". Correct")[0])
    assert len(kept.read_text().splitlines()) == 12
    assert not (tmp_path / "out").exists()
    report = prepare(folder, source, tmp_path / "out", dataset__on_bad="quarantine", dataset__max_bad="2%", dataset__max_row_tokens=120)
    assert (report.metrics["rows_rejected"], report.metrics["shards_resumed"]) == (12, 1)


def test_the_run_stops_early_when_the_share_cannot_be_met_any_more(folder: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", '{"text": "good"}\n' + '{"body": "no such column"}\n' * 20_000)
    with pytest.raises(DataError) as caught:
        prepare(folder, source, tmp_path / "out", dataset__on_bad="quarantine", dataset__shard_bytes=10_000)
    done = int(caught.value.message.split(" rows read")[0].split(" of ")[1].replace(",", ""))
    assert done < 1000


def test_a_wrong_column_name_is_said_while_planning(folder: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", GOOD * 100)
    with pytest.raises(DataError, match=r":1 \(byte 0\): no column 'body'"):
        prepare(folder, source, tmp_path / "out", **ALL, dataset__text_column="body")


def test_a_file_without_one_good_row_does_not_stop_the_others(folder: Path, tmp_path: Path) -> None:
    sources = [write(tmp_path / "a.jsonl", '{"text": 1, "label": null}\n'), write(tmp_path / "b.jsonl", GOOD)]
    report = prepare(folder, sources, tmp_path / "out", **ALL, dataset__label_column="label")
    assert (report.metrics["rows_rejected"], report.metrics["rows_written"]) == (1, 2)


def test_data_with_rejects_are_not_taken_for_strict_ones(folder: Path, tmp_path: Path) -> None:
    source = mixed(tmp_path / "a.jsonl")
    prepare(folder, source, tmp_path / "out", **ALL, **TIGHT)
    words = r"holds these data, but without 12 of 600 rows \(2\.0000%\)"
    with pytest.raises(DataError, match=words):
        prepare(folder, source, tmp_path / "out", **{**ALL, "dataset__max_bad": 0.01}, **TIGHT)
    with pytest.raises(DataError, match=rf"{words}|a\.jsonl:8 \(byte "):
        prepare(folder, source, tmp_path / "out", **TIGHT)
    assert prepare(folder, source, tmp_path / "out", **{**ALL, "dataset__max_bad": 0.02}, **TIGHT).metrics["reused"]


def test_a_clean_set_is_the_same_in_both_modes(folder: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", corpus(50))
    first = prepare(folder, source, tmp_path / "out")
    assert not (tmp_path / "out" / "rejects.jsonl").exists()
    again = prepare(folder, source, tmp_path / "out", **ALL)
    assert again.metrics["reused"]
    assert again.metrics["content_hash"] == first.metrics["content_hash"]


def test_strict_mode_does_not_go_on_with_what_quarantine_left(folder: Path, tmp_path: Path) -> None:
    source = mixed(tmp_path / "a.jsonl")
    with pytest.raises(DataError):
        prepare(folder, source, tmp_path / "out", **{**ALL, "dataset__max_bad": 0.019}, **TIGHT)
    with pytest.raises(DataError, match=r"a\.jsonl:8 \(byte "):
        prepare(folder, source, tmp_path / "out", **TIGHT)


@pytest.mark.parametrize(
    ("file", "packing"),
    [("a.jsonl", "none"), ("a.jsonl", "bfd"), ("a.jsonl.gz", "none"), ("a.csv", "none"), ("a.txt", "none"), ("a.parquet", "none")],
)
def test_texts_that_are_too_long_are_named_by_their_place_in_every_format(file: str, packing: str, folder: Path, tmp_path: Path) -> None:
    texts = [text.strip().replace("\n", " ") or "x" for text in corpus(40)]
    texts[11] = texts[31] = "zebra " * 300
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    content = {
        "a.jsonl": lines.encode(),
        "a.jsonl.gz": gzip.compress(lines.encode()),
        "a.csv": ("text\n" + "".join(json.dumps(text, ensure_ascii=False).replace("\\t", "\t") + "\n" for text in texts)).encode(),
        "a.txt": "\n".join(texts).encode(),
        "a.parquet": parquet(pa.table({"text": texts})),
    }[file]
    lines_or_rows = [13, 33] if file == "a.csv" else [12, 32]
    source = write(tmp_path / file, content)
    values: dict[str, Any] = {"packing__truncation_strategy": "error", "packing__max_length": 256, "packing__strategy": packing}
    with pytest.raises(DataError, match=rf"{file}(:| row |: row ){lines_or_rows[0]}\b.* tokens, [0-9]+ fit into max_length 256"):
        prepare(folder, source, tmp_path / "out", **values)
    report = prepare(folder, source, tmp_path / "out", **ALL, **values, dataset__shard_bytes=1500, dataset__batch_size=3)
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").open(encoding="utf-8")]
    assert report.metrics["rows_rejected"] == 2
    assert [reject["line"] or reject["row"] for reject in rejects] == lines_or_rows
    assert {reject["reason_code"] for reject in rejects} == {"too-many-tokens"}
    check_places(source, rejects)


def test_bad_rows_before_a_late_one_do_not_move_its_place(folder: Path, tmp_path: Path) -> None:
    lines = [
        '{"text": 5}',
        '{"text": "a"}',
        "",
        "{bro",
        '{"text": "' + "zebra " * 50 + '"}',
        '{"text": "b"}',
        "x",
        '{"text": "' + "dog " * 50 + '"}',
    ]
    source = write(tmp_path / "a.jsonl", "\n".join(lines))
    metrics, rejects = quarantined(folder, source, tmp_path / "out", max_row_tokens=40)
    assert [(reject["line"], reject["reason_code"]) for reject in rejects] == [
        (1, "wrong-type"),
        (4, "not-json"),
        (5, "too-many-tokens"),
        (7, "not-json"),
        (8, "too-many-tokens"),
    ]
    assert metrics["rows_written"] == 2
    check_places(source, rejects)


@pytest.mark.fault
@pytest.mark.reliability(24, "a FIFO, a dangling link and a loop of links are named, and nothing hangs")
def test_what_is_no_file_is_named_and_never_hangs(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", GOOD)
    odd = tmp_path / "in" / "b.jsonl"
    for make, reason in (
        (lambda: os.mkfifo(odd), "a FIFO, not a file"),
        (lambda: odd.symlink_to(tmp_path / "in" / "gone"), "a link to"),
        (lambda: odd.symlink_to(odd), "a link to"),
    ):
        make()
        for source in (str(tmp_path / "in" / "*.jsonl"), str(tmp_path / "in")):
            with pytest.raises(DataError, match=reason) as caught:
                prepare(folder, [source], tmp_path / "out", **ALL)
            assert str(odd) in caught.value.message
        odd.unlink()


LONG = """
import re, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from reading import rows
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024
rows({short!r})
base = peak()
found = rows({path!r}, on_bad="quarantine", max_line_bytes={limit})
print(len(found), peak() - base)
"""
"""Peaks of this image alone: `ru_maxrss` of a process begins with the peak of the one that started it."""


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.reliability(24, "a line of 100 MB: passed over without holding it, or read in less than ten times its size")
def test_a_line_of_100_mb_is_passed_over_without_holding_it_or_read_in_bounded_memory(tmp_path: Path) -> None:
    path, short = tmp_path / "a.jsonl", write(tmp_path / "short.jsonl", b'{"text": "a"}\n')
    with path.open("wb") as file:
        file.write(b'{"text": "a"}\n{"text": "')
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n{"text": "b"}\n')

    def measured(limit: int) -> tuple[int, int]:
        code = LONG.format(tests=str(Path(__file__).parent), path=str(path), short=str(short), limit=limit)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
        found, used = map(int, done.stdout.split())
        return found, used

    (over, passing), (read, reading) = measured(1_000_000), measured(256_000_000)
    assert (over, read) == (2, 3)
    assert 100 <= reading < 1000, "the control, which must hold the line, does"
    assert passing * 2 < reading


@pytest.mark.parametrize("kind", ["few", "many"])
def test_a_block_with_bad_rows_costs_little_whether_they_are_few_or_many(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as many rows take about four times the work, of Python and of the parser, also where all but a few are bad."""
    bad = [b'{"text": 5}', b"{bro"]
    parsed = [0]
    arrays = jsonl._arrays

    def counted(path: str, block: bytes, columns: Any) -> Any:
        parsed[0] += len(block)
        return arrays(path, block, columns)

    monkeypatch.setattr(jsonl, "_arrays", counted)

    def work(count: int) -> tuple[int, int]:
        lines = [
            b'{"text": "a good row"}' if number % (1000 if kind == "many" else 3) == (0 if kind == "many" else 1) else bad[number % 2]
            for number in range(count)
        ]
        if kind == "few":
            lines = [line if number % 997 == 5 else b'{"text": "a good row"}' for number, line in enumerate(lines)]
        file = write(tmp_path / f"{count}.jsonl", b'{"text": "a"}\n' + b"\n".join(lines))
        parsed[0] = 0
        return bytecodes(lambda: read_rows(file, on_bad="quarantine")), parsed[0]

    work(100)
    instructions, parser_bytes = (large / small for large, small in zip(work(2_000), work(500), strict=True))
    assert instructions < 6
    assert parser_bytes < 8


def seeds(name: str) -> bytes:
    text = b"".join(json.dumps({"text": f"글 {i}", "label": "xy"[i % 2]}, ensure_ascii=i % 3 == 0).encode() + b"\n" for i in range(30))
    table = pa.table({"text": [f"글 {i}" for i in range(30)], "label": ["xy"[i % 2] for i in range(30)]})
    if name.startswith("a.jsonl"):
        packed = {
            "": text,
            ".gz": gzip.compress(text, mtime=0),
            ".zst": _zstd(text),
            ".xz": lzma.compress(text),
            ".bz2": bz2.compress(text),
        }
        return packed[name.removeprefix("a.jsonl")]
    if name == "a.json":
        return b"[" + b",\n".join(text.splitlines()) + b"]"
    if name == "a.csv":
        return b"text,label\n" + "".join(f'"글, {i}",x\n' for i in range(30)).encode()
    return parquet(table) if name == "a.parquet" else arrow(table) if name == "a.arrow" else text


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


PARTS = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([b'"', b"\n", b"\r\n", b"\x00" * 8, b"\xff", b"{", b"}", b"[", b"null", b"\xef\xbb\xbf", b"\\ud800", b","]),
)


@pytest.mark.fault
@pytest.mark.reliability(25, "damaged bytes in every format: an FtcliError or rows, the law of quarantine holds, nothing hangs")
@pytest.mark.parametrize(
    "name",
    [*(f"a.jsonl{codec}" for codec in ("", ".gz", ".zst", ".xz", ".bz2")), "a.json", "a.csv", "a.tsv", "a.txt", "a.parquet", "a.arrow"],
)
@hypothesis_settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), PARTS), max_size=4),
    target=st.sampled_from([40, 10**6]),
    cut=st.floats(0.5, 1),
)
def test_damaged_bytes_are_refused_or_accounted_for(
    tmp_path: Path, name: str, edits: list[tuple[float, int, bytes]], target: int, cut: float
) -> None:

    data = seeds(name)
    for where, width, instead in edits:
        place = int(where * len(data))
        data = data[:place] + instead + data[place + width :]
    data = data[: int(cut * len(data)) if cut < 0.9 else None]
    file = write(tmp_path / name, data)
    try:
        good, bad = accounted(file, on_bad="quarantine", shard_bytes=target)
    except FtcliError as error:
        assert str(file) in error.message  # noqa: PT017 - most examples do not raise
        return
    places = [(row.start, row.row) for row in bad]
    assert len(set(places)) == len(places)
    assert all(row.code in BadCode.__args__ for row in bad)  # type: ignore[attr-defined]
    if name.startswith("a.jsonl") and name != "a.jsonl":
        return
    if name == "a.jsonl":
        assert len(good) + len(bad) == sum(1 for line in data.removeprefix(streams.BOM).split(b"\n") if line.strip())


@pytest.mark.fault
@pytest.mark.reliability(25, "a damaged text, loaded by datasets, is another text without a word", control=True)
def test_positive_control_damage_that_datasets_takes_for_data(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", b"text\nfirst\nnull\nthird\n")

    loaded = load_dataset("csv", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache"))["text"]

    assert list(loaded) != ["first", "null", "third"]
    assert accounted(file, on_bad="quarantine")[0] == ["first", "null", "third"]


def test_a_name_that_is_not_utf8_is_refused_in_words(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xb0\xa1's.jsonl"
    with open(name, "wb") as file:  # noqa: PTH123 - a name of bytes
        file.write(b'{"text": "a"}\n')
    said = refusal(tmp_path)
    assert said.message == f"{tmp_path}/\\xb0\\xa1\\'s.jsonl: the name is not UTF-8"
    assert f"mv $'{tmp_path}/\\xb0\\xa1\\'s.jsonl' NEW" in said.hint
    printf = subprocess.run(
        ["bash", "-c", said.hint.partition("mv ")[2].partition(" NEW")[0].join(("printf %s ", ""))], capture_output=True
    )
    assert printf.stdout == name
