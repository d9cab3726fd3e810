from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from ftcli.plugins import picklefile
from ftcli.plugins.picklefile import Pickle

from ftcli.contracts import Columns, Place
from ftcli.core.reading import tabular, unpickle
from ftcli.errors import DataError
from ftcli.records import BadRow, Piece
from reading import plan, refusal, settings, write
from timing import PATIENCE

TEXTS, LABELS = [f"글 {i}" for i in range(30)], [i % 3 for i in range(30)]
EXPECTED = list(zip(TEXTS, LABELS, strict=True))
PLAIN = {
    "dict of lists": {"text": TEXTS, "label": LABELS},
    "dict of tuples": {"text": tuple(TEXTS), "label": tuple(LABELS)},
    "list of dicts": [{"text": text, "label": label, "more": [1]} for text, label in EXPECTED],
    "tuple of dicts": tuple({"text": text, "label": label} for text, label in EXPECTED),
}
TRUSTED = {
    "DataFrame": pd.DataFrame({"text": TEXTS, "label": LABELS}, index=range(100, 130)),
    "DataFrame of strings and categories": pd.DataFrame({"text": pd.array(TEXTS, "string"), "label": pd.Categorical(LABELS)}),
    "dict of arrays": {"text": np.array(TEXTS), "label": np.array(LABELS)},
    "list of dicts with numpy values": [{"text": text, "label": np.int64(label)} for text, label in EXPECTED],
}


pytestmark = pytest.mark.usefixtures("nursery")  # a reader takes 0.9 s of CPU to begin


class Touch:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def read(file: Path, columns: Columns | None = None, **dataset: Any) -> tuple[list[Any], list[BadRow]]:
    """Texts, or (text, label) pairs, and the bad rows; as the planner and a worker do it."""
    chosen, bad = settings(file, **dataset), list[BadRow]()
    pieces = Pickle().plan(str(file), 1 << 30, chosen)
    if columns is None:
        label = chosen.dataset.label_column
        columns = Columns(chosen.dataset.text_column, label, Pickle().label_kind(str(file), label, chosen) if label else None)
    batches = [batch for piece in pieces for batch in Pickle().read(piece, columns, chosen, bad.append)]
    for batch in batches:
        batch.validate(full=True)
        assert all(column.null_count == 0 for column in batch.columns)
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return [row[0] if len(row) == 1 else row for row in rows], bad


def refused(file: Path, **dataset: Any) -> DataError:
    """The error, which must name the file."""
    with pytest.raises(DataError) as caught:
        read(file, **dataset)
    assert caught.value.message.startswith(f"{file}: ")
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, ".pkl") for name in [*PLAIN, *TRUSTED]), ("list of dicts", ".pickle.gz"), ("list of dicts", ".pkl.zst")]
)
def test_tables_of_every_shape_are_read(tmp_path: Path, name: str, suffix: str) -> None:
    data = pickle.dumps({**PLAIN, **TRUSTED}[name])
    if suffix.endswith("zst"):
        data = pa.compress(data, "zstd", asbytes=True)
    file = write(tmp_path / f"a{suffix}", gzip.compress(data) if suffix.endswith("gz") else data)
    assert read(file, label_column="label", trust_pickle=name in TRUSTED) == (EXPECTED, [])


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_every_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    file = write(tmp_path / "a.pkl", pickle.dumps(PLAIN["list of dicts"], protocol))
    assert read(file, label_column="label") == (EXPECTED, [])


def test_a_list_of_strings_is_the_texts_and_a_list_of_lists_has_columns_by_number(tmp_path: Path) -> None:
    strings, pairs = write(tmp_path / "a.pkl", pickle.dumps(TEXTS)), write(tmp_path / "b.pkl", pickle.dumps(EXPECTED))
    assert read(strings) == (TEXTS, [])
    assert read(pairs, text_column="0", label_column="1") == (EXPECTED, [])
    assert "a list of strings has no column 'label'" in refused(strings, label_column="label").message
    _, bad = read(pairs)
    assert [row.code for row in bad] == ["missing-field"] * 30
    assert (
        bad[0].hint == "Columns: 0, 1. The columns have no names, so give their numbers, counted from 0: --text-column 0 --label-column 1."
    )


@pytest.mark.parametrize(
    ("table", "text", "label"),
    [
        (pd.DataFrame([list(pair) for pair in EXPECTED]), "0", "1"),
        (dict(enumerate([TEXTS, LABELS])), "0", "1"),
        (pd.DataFrame({("a", "text"): TEXTS, ("a", "label"): LABELS}), "('a', 'text')", "('a', 'label')"),
    ],
    ids=["DataFrame", "dict", "MultiIndex"],
)
def test_columns_that_are_no_strings_are_named_as_they_are_shown(tmp_path: Path, table: Any, text: str, label: str) -> None:
    file = write(tmp_path / "a.pkl", pickle.dumps(table))
    assert read(file, text_column=text, label_column=label, trust_pickle=True) == (EXPECTED, [])
    assert f"Columns: {text}, {label}." in refused(file, trust_pickle=True).hint


def test_rows_by_number_and_tables_without_columns_are_told_apart_from_counted_columns(tmp_path: Path) -> None:
    rows = {number: {"text": text, "label": 1} for number, text in enumerate(TEXTS)}
    for table in (rows, {f"id-{number}": row for number, row in rows.items()}):
        error = refused(write(tmp_path / "a.pkl", pickle.dumps(table)))
        assert ("holds a dict of rows" in error.message, error.hint) == (True, "Pickle its rows as a list instead: list(d.values()).")
    assert "counted" not in refused(write(tmp_path / "b.pkl", pickle.dumps({})), text_column="0").hint


def test_many_rows_come_in_batches_of_bounded_size(tmp_path: Path) -> None:
    long = "x" * (tabular.BATCH_CHARACTERS // 4)
    texts = [f"{number}" for number in range(25_000)] + [long] * 10 + ["end"]
    file = write(tmp_path / "a.pkl", pickle.dumps([{"text": text} for text in texts]))
    piece = Pickle().plan(str(file), 1, settings(file))[0]
    sizes = [(batch.num_rows, batch.nbytes) for batch in Pickle().read(piece, Columns("text"), settings(file), pytest.fail)]
    assert max(rows for rows, _ in sizes) == tabular.ROWS
    assert max(size for _, size in sizes) < 2 * tabular.BATCH_CHARACTERS
    assert sum(rows for rows, _ in sizes) == len(texts)
    assert read(file)[0] == texts


def test_planning_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picklefile, "_child", lambda _: pytest.fail("a process was started"))
    file = write(tmp_path / "a.pkl", pickle.dumps(TEXTS))
    size = file.stat().st_size
    assert plan(file).shards[0].pieces == (Piece(str(file), "pickle", 0, size, "file", size),)
    with pytest.raises(DataError, match="no rows"):
        plan(write(tmp_path / "b.pkl", b""))


# -- bad rows ----------------------------------------------------------------------------------------------------------

GOOD = {"text": "a", "label": 1}


@pytest.mark.parametrize(
    ("row", "code", "field", "reason"),
    [
        ({"text": None, "label": 1}, "null", "text", "'text' is null; text must be a string"),
        ({"text": 3, "label": 1}, "wrong-type", "text", "'text' is 3 (a number); text must be a string"),
        (
            {"text": "b", "label": 2.0},
            "wrong-type",
            "label",
            "'label' is 2.0 (a number); labels must be whole numbers, as in the first row",
        ),
        ({"text": "b", "label": True}, "wrong-type", "label", "'label' is true"),
        ({"text": "b\ud800", "label": 1}, "surrogate", "text", "'text' holds the lone surrogate U+D800, which no UTF-8 text can"),
        ({"text": b"b", "label": 1}, "wrong-type", "text", "'text' is b'b' (bytes)"),
        (
            {"text": "b", "label": 2**70},
            "out-of-range",
            "label",
            f"'label' is {2**70} (a number), which does not fit into a signed 64-bit integer",
        ),
        (
            {"text": "b", "label": 1 << 9999},
            "out-of-range",
            "label",
            "'label' is an integer of 10,000 bits (a number), which does not fit into a signed 64-bit integer",
        ),
        ({"text": "b"}, "missing-field", "label", "no column 'label'"),
        ({"texts": "b", "label": 1}, "missing-field", "text", "no column 'text'"),
        ("b", "not-an-object", None, "a row must be a dict, found 'b' (a string)"),
        ({"text": "가" * 34, "label": 1}, "line-too-long", "text", "'text' has 102 bytes, more than the 100 allowed"),
    ],
)
@pytest.mark.parametrize("shape", ["list of dicts", "dict of lists"])
def test_a_bad_row_is_rejected_by_number_and_reason_and_the_others_are_read(
    row: Any, code: str, field: str | None, reason: str, shape: str
) -> None:
    table: Any = [GOOD, row, GOOD]
    if shape == "dict of lists":
        if not isinstance(row, dict) or row.keys() != GOOD.keys():
            pytest.skip("a dict of lists has no such rows")
        table = {name: [line[name] for line in table] for name in GOOD}
    made = tabular.Table("a.pkl", table, [("text", "text", "string"), ("label", "label", "int")], 100)
    batches = list(made.batches())
    assert [row for batch, _ in batches for row in batch.to_pylist()] == [{"text": "a", "label": 1}] * 2
    ((place, found, words, name, hint),) = [one for _, several in batches for one in several]
    assert (place, found, name) == (2, code, field)
    assert words.startswith(reason)
    assert hint


def test_bad_rows_come_before_later_rows(tmp_path: Path) -> None:
    table = [GOOD] * 10_000 + [{}] + [GOOD] * 9_999 + [{}]
    file = write(tmp_path / "a.pkl", pickle.dumps(table))
    events: list[Any] = []
    piece = Pickle().plan(str(file), 1, settings(file))[0]
    for batch in Pickle().read(piece, Columns("text"), settings(file), lambda bad: events.append(-(bad.row or 0))):
        events.append(batch.num_rows)  # noqa: PERF401 - beside what reject appends
    assert events == [10_000, -10_001, 9_999, -20_001]


def test_the_label_kind_is_that_of_the_first_row_that_has_one(tmp_path: Path) -> None:
    for label, kind in (("x", "string"), (7, "int")):
        file = write(tmp_path / "a.pkl", pickle.dumps([3, {"text": "a"}, {"text": "a", "label": label}]))
        assert Pickle().label_kind(str(file), "label", settings(file)) == kind
    assert Pickle().label_kind(str(write(tmp_path / "b.pkl", pickle.dumps([]))), "label", settings(file)) is None
    file = write(tmp_path / "c.pkl", pickle.dumps([{"label": 1.5}, {"label": None}]))
    assert "row 1: 'label' is 1.5 (a number); labels must be strings, whole numbers" in refused(file, label_column="label").message
    assert Pickle().label_kind(str(file), "label", settings(file, on_bad="quarantine")) is None


def test_rows_that_are_found_bad_later_are_named_by_number(tmp_path: Path) -> None:
    piece = Piece("a.pkl", "pickle", 0, 1, "file", 1)
    assert list(islice(Pickle().places(piece, settings()), 2)) == [Place(row=1), Place(row=2)]


def test_labels_alone_are_read_without_looking_at_the_text(tmp_path: Path) -> None:
    file = write(tmp_path / "a.pkl", pickle.dumps([{"label": "x"}, {"label": "y", "text": None}]))
    assert read(file, Columns("text", "label", "string", labels_only=True)) == (["x", "y"], [])


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"text": ["a", "b"], "label": [1]}, "the columns have different lengths: 2, 1"),
        ({"texts": ["a"], "label": [1]}, "no column 'text'"),
        ({"text": "abc", "label": [1]}, "column 'text' is 'abc' (a string), not a list"),
        (3, "holds a int, not a table"),
        ({"text", "label"}, "holds a set, not a table"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, table: Any, reason: str) -> None:
    file = write(tmp_path / "a.pkl", pickle.dumps(table))
    with pytest.raises(DataError) as caught:
        read(file, Columns("text", "label", "int"))
    assert caught.value.message.startswith(f"{file}: ")
    assert reason in caught.value.message
    assert [row.reason for row in read(write(tmp_path / "b.pkl", pickle.dumps([{0: "a"}])), text_column="0")[1]] == ["no column '0'"]


# -- pickles that run code ---------------------------------------------------------------------------------------------


def codes(canary: Path) -> dict[str, bytes]:
    """Pickles that touch `canary` when `pickle.load` loads them."""
    command = f"touch {canary}"
    late = io.BytesIO()
    pickle.Pickler(late, 4).dump(["x" * picklefile.HEAD, Touch(canary)])
    return {
        "reduce": pickle.dumps([{"text": "a"}, Touch(canary)], 2),
        "stack global": pickle.dumps([{"text": Touch(canary)}], 4),
        "behind the head": late.getvalue(),
        "global": b"cos\nsystem\n(S'" + command.encode() + b"'\ntR.",
        "inst": b"(S'" + command.encode() + b"'\nios\nsystem\n.",
        "memoised names": b"\x80\x04\x8c\x06system\x94\x8c\x02os\x94h\x01h\x00\x93\x8c"
        + bytes([len(command)])
        + command.encode()
        + b"\x85R.",
        "nested": pickle.dumps([{"text": "a", "inner": {"deep": [((Touch(canary),),)]}}], 5),
    }


@pytest.mark.reliability(26, "pickle that runs code")
@pytest.mark.parametrize("name", codes(Path("canary")))
def test_a_pickle_that_names_code_runs_none_of_it(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    file = write(tmp_path / "a.pkl", codes(canary)[name])
    error = refused(file)
    assert "system, so loading it runs code" in error.message
    assert "--trust-pickle" in error.hint
    assert not canary.exists()
    with file.open("rb") as stream:
        pickle.load(stream)
    assert canary.exists(), "the trap itself must work"


def test_a_data_frame_is_refused_by_name_and_read_when_it_is_trusted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.pkl", pickle.dumps(TRUSTED["DataFrame"]))
    error = refused(file)
    assert "refers to pandas." in error.message
    assert error.hint == "It holds a DataFrame. If you created the file: --trust-pickle. Better: convert it once with DataFrame.to_parquet."
    assert plan(file, trust_pickle=True).notes == (
        f"code in these pickles was allowed to run, in a separate process (--trust-pickle): {file}",
    )
    assert plan(write(tmp_path / "b.pkl", pickle.dumps(TEXTS))).notes == ()


def test_references_to_objects_outside_are_refused(tmp_path: Path) -> None:
    for data in (b"Pouter\n.", b"\x80\x04K\x01Q."):
        assert "refers to objects outside the pickle" in refused(write(tmp_path / "a.pkl", data)).message
    assert "unregistered extension code" in refused(write(tmp_path / "b.pkl", b"\x80\x02\x82\x07.")).message


def test_code_of_a_trusted_pickle_runs_in_another_process_whose_end_is_an_error(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    file = write(tmp_path / "a.pkl", pickle.dumps(Touch(canary)))
    assert "holds a int, not a table" in refused(file, trust_pickle=True).message
    assert canary.exists()
    for code, how in ((b"cos\nabort\n(tR.", "by SIGABRT"), (b"cos\n_exit\n(I7\ntR.", "with exit code 7")):
        assert f"the process that loads it ended {how}" in refused(write(tmp_path / "b.pkl", code), trust_pickle=True).message
    assert (
        "cannot be unpickled: ModuleNotFoundError" in refused(write(tmp_path / "c.pkl", b"cno_such\nthing\n."), trust_pickle=True).message
    )


def test_what_a_trusted_pickle_prints_is_no_answer(tmp_path: Path) -> None:
    code = b"cbuiltins\nprint\n(S'" + b"r" * 100 + b"'\ntR0" + pickle.dumps(TEXTS)[2:]
    assert read(write(tmp_path / "a.pkl", code), trust_pickle=True) == (TEXTS, [])


# -- pickles that cost memory or time ----------------------------------------------------------------------------------


def doubled(levels: int) -> list[Any]:
    value: list[Any] = ["leaf"]
    for _ in range(levels):
        value = [value, value]
    return value


def bombs() -> dict[str, tuple[bytes, str]]:
    """Pickle and what must be said of it."""
    colliding = b"".join(b"\x8a\x0c" + (place * (2**61 - 1)).to_bytes(12, "little") + b"K\x01" for place in range(150_000))
    return {
        "a text of 2^40 bytes": (b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"abc", "MiB of memory"),
        "a text of 2^62 bytes": (b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"abc", "MiB of memory"),
        "bytes of 2^33": (b"\x80\x04\x8e" + (2**33).to_bytes(8, "little") + b"abc", "MiB of memory"),
        "a frame of 2^50": (b"\x80\x04\x95" + (2**50).to_bytes(8, "little") + b"K\x01.", "MiB of memory"),
        "memo 2^32": (b"\x80\x04]r\xff\xff\xff\xff.", "MiB of memory"),
        "a key of 3 M levels": (b"\x80\x04})" + b"\x85" * 3_000_000 + b"K\x01s.", "ended by SIGSEGV"),
        "keys of one hash": (b"\x80\x04}(" + colliding + b"u.", "takes longer than"),
        "garbage": (b"garbage", "cannot be unpickled"),
        "nothing but the end": (b".", "cannot be unpickled"),
        "cut off": (pickle.dumps(TEXTS)[:-5], "cannot be unpickled"),
        "two pickles": (pickle.dumps(TEXTS) * 2, "data follow the end of the pickle"),
        "a number of 9,999 digits": (b"I" + b"9" * 9_999 + b"\n.", "cannot be unpickled: ValueError"),
        "a text that is named again": (pickle.dumps([{"text": "x" * (1 << 20)}] * 2_000), "bytes of pickle expand to more than"),
        "2^29 leaves": (pickle.dumps(doubled(29)), "not among the rows"),
        "2^29 leaves in a text": (pickle.dumps([{"text": doubled(29)}]), "not among the rows"),
        "2 M levels": (b"\x80\x04)" + b"\x85" * 2_000_000 + b".", "not among the rows"),
    }


@pytest.mark.reliability(26, "pickle bomb")
@pytest.mark.parametrize("name", bombs())
def test_a_bomb_is_refused_and_costs_this_process_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, reason = bombs()[name]
    if reason == "takes longer than":  # which no other may, also on a slow machine; this one would take hours
        order = picklefile._order
        monkeypatch.setattr(picklefile, "_order", lambda *given, **options: replace(order(*given, **options), cpu_seconds=1))
    file = write(tmp_path / "a.pkl", data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bad, chosen, said = list[BadRow](), settings(file), "not among the rows"
    try:
        for batch in Pickle().read(Pickle().plan(str(file), 1, chosen)[0], Columns("text"), chosen, bad.append):
            assert batch.num_rows == 0 or name == "a text that is named again"
    except DataError as error:
        said = error.message.removeprefix(f"{file}: ")
    assert reason in said
    assert str(file) not in said
    assert bool(bad) == (said == "not among the rows")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert list(tmp_path.iterdir()) == [file]


def test_a_gzip_bomb_stops_at_the_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picklefile, "free_memory", lambda: 300 << 20)
    size = 1 << 30
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) as packed:
        packed.write(b"\x80\x04\x8d" + size.to_bytes(8, "little"))
        for _ in range(1 << 6):
            packed.write(b"x" * (1 << 24))
        packed.write(b".")
    file = write(tmp_path / "a.pkl.gz", buffer.getvalue())
    assert "needs more than 240 MiB of memory to load" in refused(file).message


def test_damaged_compressed_data_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.pkl.gz", gzip.compress(pickle.dumps(TEXTS * 1000))[:-100])
    assert "the compressed data end too early" in refused(file).message
    assert "damaged or not gzip data" in refused(write(tmp_path / "b.pkl.gz", b"no gzip at all, not even close")).message


def order(file: Path, **changes: Any) -> str:
    return json.dumps(
        {
            "path": str(file),
            "wanted": [["text", "text", "string"]],
            "trusted": False,
            "memory_bytes": 1 << 30,
            "most_bytes": 1 << 20,
            **changes,
        }
    )


def program(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_child_is_limited_before_it_loads(tmp_path: Path) -> None:
    """Python inside the limits can neither write a file nor reach a listener; outside it can."""
    file, canary = write(tmp_path / "a.pkl", pickle.dumps(TEXTS)), tmp_path / "canary"
    code = f"""
import json, socket, sys
from ftcli.core.reading import unpickle
server = socket.create_server(("127.0.0.1", 0))
if sys.argv[2] == "limited":
    unpickle._leave_network()
    unpickle._limit(unpickle.Order(**json.loads(sys.argv[1])))
for attempt in (
    lambda: socket.create_connection(server.getsockname(), 5),
    lambda: bytes(2 << 30),
    lambda: open({str(canary)!r}, "wb", buffering=0).write(b"written"),
):
    try:
        attempt()
        print("done")
    except (OSError, MemoryError) as error:
        print(type(error).__name__)
"""
    assert program(code, order(file), "free").stdout.split() == ["done"] * 3
    assert canary.read_bytes() == b"written"
    canary.unlink()
    network, memory, disk = program(code, order(file), "limited").stdout.split()
    assert (memory, disk) == ("MemoryError", "OSError")
    assert canary.read_bytes() == b""
    if os.geteuid() == 0:
        assert network == "OSError"


def test_a_child_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picklefile, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(picklefile, "PROGRAM", "import time; time.sleep(60)")
    assert "no progress in loading it for 0 s" in refused(write(tmp_path / "a.pkl", pickle.dumps(TEXTS))).message


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_is_killed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setattr(picklefile, "PROGRAM", f"import os; os.kill(os.getpid(), {int(number)})")
    error = refused(write(tmp_path / "a.pkl", pickle.dumps(TEXTS)))
    assert f"the process that loads it ended by {number.name}" in error.message
    assert ("memory runs out" in error.hint) == (number == signal.SIGKILL)


def test_a_reader_that_leaves_early_leaves_no_process(tmp_path: Path) -> None:
    file = write(tmp_path / "a.pkl", pickle.dumps([f"{number} " * 50 for number in range(100_000)]))
    piece = Pickle().plan(str(file), 1, settings(file))[0]
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = len(children.read_text().split())
    batches = Pickle().read(piece, Columns("text"), settings(file), pytest.fail)
    next(batches)
    assert len(children.read_text().split()) > before
    assert isinstance(batches, Generator)
    batches.close()
    assert len(children.read_text().split()) == before


# -- the child's program, inside this process --------------------------------------------------------------------------


class Pipe:
    """What would go to the parent."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send_bytes(self, data: Any) -> None:
        self.messages.append(bytes(data))


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limits for the process that runs the tests."""
    for name in ("_leave_network", "_limit", "_allow_cpu"):
        monkeypatch.setattr(unpickle, name, lambda *_: None)


def answers(file: Path, **changes: Any) -> list[tuple[bytes, bytes]]:
    pipe = Pipe()
    unpickle._Child(unpickle.Order(**json.loads(order(file, **changes))), pipe).run()  # type: ignore[arg-type]
    return list(zip(pipe.messages[::2], pipe.messages[1::2], strict=True))


@pytest.mark.usefixtures("unlimited")
def test_the_child_answers_with_batches_bad_rows_a_kind_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.pkl", pickle.dumps([{"text": "a"}, {"text": 1}]))
    kinds = [kind for kind, _ in answers(file)]
    assert kinds == [unpickle.BAD, unpickle.BATCH, unpickle.END]
    assert answers(file, kind_only=True) == [(unpickle.KIND, b"string")]
    for data in (b"garbage", pickle.dumps(TEXTS) * 2, b"cos\nsystem\n.", b"Pouter\n."):
        ((kind, payload),) = answers(write(tmp_path / "b.pkl", data))
        assert kind == unpickle.FAILED
        assert json.loads(payload)[0].startswith(f"{tmp_path / 'b.pkl'}: ")
    monkeypatch.setattr(unpickle, "SWELLING_FROM", 0)
    monkeypatch.setattr(unpickle, "SWELLING", 0)
    assert b"bytes of pickle expand to more than" in answers(file)[-1][1]
    monkeypatch.setattr(tabular, "Table", lambda *_: bytes(1 << 62))
    assert b"MiB of memory" in answers(file)[-1][1]


@pytest.mark.usefixtures("unlimited")
def test_every_shape_makes_the_same_table_in_this_process_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "BATCH_CHARACTERS", 50)
    wanted = [["text", "text", "string"], ["label", "label", "int"]]
    numbers = [["text", "0", "string"], ["label", "1", "int"]]
    for table, columns in [*((table, wanted) for table in {**PLAIN, **TRUSTED}.values()), (EXPECTED, numbers)]:
        messages = answers(write(tmp_path / "a.pkl", pickle.dumps(table)), trusted=True, wanted=columns)
        schema = pa.schema([("text", pa.large_string()), ("label", pa.int64())])
        batches = [pa.ipc.read_record_batch(pa.py_buffer(data), schema) for kind, data in messages if kind == unpickle.BATCH]
        assert [(row["text"], row["label"]) for batch in batches for row in batch.to_pylist()] == EXPECTED
        assert len(batches) > 1
    for table, reason in (
        (3, "not a table"),
        ({"text": [1], "label": []}, "different lengths"),
        ({"text": "abc", "label": []}, "not a list"),
    ):
        assert reason in str(answers(write(tmp_path / "b.pkl", pickle.dumps(table)), wanted=wanted)[0][1])
    strings = write(tmp_path / "c.pkl", pickle.dumps(["a", 3, "b"]))
    assert [kind for kind, _ in answers(strings)] == [unpickle.BAD, unpickle.BATCH, unpickle.END]
    assert b"has no column" in answers(strings, wanted=wanted)[0][1]
    for rows, strict, kind in (
        ([{"text": "a"}, {"label": 1}], True, unpickle.KIND),
        ([{"label": 1.5}], True, unpickle.FAILED),
        ([{}], False, unpickle.END),
    ):
        file = write(tmp_path / "d.pkl", pickle.dumps(rows))
        assert answers(file, kind_only=True, strict=strict, wanted=[["label", "label", "string"]])[0][0] == kind


@pytest.mark.usefixtures("unlimited")
def test_the_child_says_every_second_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 2))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    kinds = [kind for kind, _ in answers(write(tmp_path / "a.pkl", pickle.dumps(TEXTS)))]
    assert kinds[0] == unpickle.ALIVE
    assert kinds[-1] == unpickle.END
    assert answers(write(tmp_path / "b.pkl.gz", gzip.compress(pickle.dumps(TEXTS))), trusted=True)[-1][0] == unpickle.END


def test_the_first_global_is_found_without_loading() -> None:
    assert unpickle.first_global(pickle.dumps(os.path.join, 2)) == ("posixpath", "join")
    assert unpickle.first_global(pickle.dumps(os.path.join, 4)) == ("posixpath", "join")
    assert unpickle.first_global(b"\x80\x04h\x01h\x00\x93.") is None
    assert unpickle.first_global(pickle.dumps(TEXTS)) is None
    assert unpickle.first_global(pickle.dumps(TEXTS)[:20]) is None
    assert unpickle.first_global(b"garbage") is None


def test_splits_in_one_pickle_are_told_to_be_written_one_by_one(tmp_path: Path) -> None:
    """jq reads no pickle."""
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": [{"text": "a"}], "test": [{"text": "b"}]}))
    assert (
        "These are splits: write each to its own file (from .json: jq .train OLD > train.json; from a pickle: json.dump each)."
        in refusal(tmp_path / "a.pkl").hint
    )
