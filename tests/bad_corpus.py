"""Sixty bad files: what is in each, what strict mode says of it, and what quarantine makes of it."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

GOOD = b'{"text": "one", "label": "x"}\n{"text": "two", "label": "y"}\n'
SIZE = len(GOOD)
HEAD = b"text,label\none,x\ntwo,y\n"
DEEP = 100_000
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0f" * 32 + b"\nsize 1503300328\n"
POINTED = ("a.jsonl", "a.txt", "a.csv", "a.json", "a.parquet", "a.arrow", "a.pkl", "a.jsonl.gz")


@dataclass(frozen=True)
class Case:
    """One file. `rejects` are the reason codes in order; None: the file as a whole is refused, under quarantine as well."""

    name: str
    file: str
    content: bytes
    strict: tuple[str, ...] = ()
    """Parts of the strict message, {file} is the path; none: the file is read without a complaint."""
    rejects: tuple[str, ...] | None = ()
    texts: tuple[str, ...] = ("one", "two", "end")
    """The texts that are left, in order."""
    settings: dict[str, Any] = field(default_factory=dict)


def line(name: str, row: bytes, code: str, reason: str, **settings: Any) -> Case:
    """A bad line between good ones, in JSON lines."""
    content = GOOD + row + b'\n{"text": "end", "label": "x"}\n'
    return Case(name, "a.jsonl", content, (f"{{file}}:3 (byte {SIZE}): ", reason), (code,), settings=settings)


def rowed(name: str, row: bytes, code: str, reason: str) -> Case:
    """A bad line between good ones, in CSV."""
    return Case(
        name, "a.csv", HEAD + row + b"\nend,x\n", (f"{{file}}:4 (byte {len(HEAD)}): ", reason), (code,), settings={"label_column": "label"}
    )


def whole(name: str, file: str, content: bytes, reason: str) -> Case:
    """A file that is refused as a whole."""
    return Case(name, file, content, ("{file}", reason), None)


def fine(name: str, file: str, content: bytes, texts: tuple[str, ...], **settings: Any) -> Case:
    """Looks odd, but is right."""
    return Case(name, file, content, (), (), texts, settings)


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    return sink.getvalue()


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _stream(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def _not_utf8() -> pa.Array:
    return pa.Array.from_buffers(pa.string(), 3, pa.array([b"one", b"t\xffo", b"end"], pa.binary()).buffers())


def _bad_crc(data: bytes) -> bytes:
    packed = gzip.compress(data, mtime=0)
    return packed[:-8] + b"\0\0\0\0" + packed[-4:]


TABLE = pa.table({"text": ["one", "two", "end"], "label": ["x", "y", "x"]})
ROWS = GOOD * 3000
LABEL = {"label_column": "label"}

CASES = (
    line("broken line", b'{"text": "a" "label"}', "not-json", "not JSON: Expecting ',' delimiter at column 14"),
    line("raw NUL", b'{"text": "a\0b", "label": "x"}', "not-json", "Invalid control character at column 12"),
    line("zero block", b"\0" * 4096, "not-json", "not JSON: Expecting value at column 1"),
    line("lone high surrogate", b'{"text": "a\\ud800", "label": "x"}', "surrogate", "the lone surrogate U+D800"),
    line("lone low surrogate", b'{"text": "\\udfff", "label": "x"}', "surrogate", "the lone surrogate U+DFFF"),
    line("latin-1", b'{"text": "caf\xe9", "label": "x"}', "not-utf8", "not UTF-8: byte 0xe9 at column 14"),
    line("CESU surrogate bytes", b'{"text": "\xed\xa0\x80"}', "not-utf8", "not UTF-8: byte 0xed"),
    line("number for text", b'{"text": 5, "label": "x"}', "wrong-type", "'text' is 5 (a number); text must be a string"),
    line("list for text", b'{"text": ["a"], "label": "x"}', "wrong-type", "'text' is ['a'] (a list)"),
    line("object for text", b'{"text": {"a": 1}, "label": "x"}', "wrong-type", "'text' is {'a': 1} (an object)"),
    line("true for text", b'{"text": true, "label": "x"}', "wrong-type", "'text' is true"),
    line("NaN for text", b'{"text": NaN, "label": "x"}', "wrong-type", "'text' is nan (a number)"),
    line("null for text", b'{"text": null, "label": "x"}', "null", "'text' is null; text must be a string"),
    line("missing text", b'{"label": "x"}', "missing-field", "no column 'text'"),
    line("text twice", b'{"text": "a", "text": "b"}', "duplicate-key", "the column 'text' exists 2 times"),
    line("nested too deeply", b'{"text": ' + b"[" * DEEP + b"]" * DEEP + b"}", "too-deep", "nested too deeply"),
    line("array on a line", b'["a", "x"]', "not-an-object", "a row must be an object, found ['a', 'x'] (a list)"),
    line("null on a line", b"null", "not-an-object", "a row must be an object, found null"),
    line("two objects on a line", b'{"text": "a"} {"text": "b"}', "not-json", "not JSON: Extra data at column 15"),
    line("control character", b'{"text": "a\x01"}', "not-json", "Invalid control character"),
    line("mark inside", b'\xef\xbb\xbf{"text": "a"}', "not-json", "Unexpected UTF-8 BOM"),
    line(
        "longer than the limit",
        b'{"text": "' + b"a" * 500 + b'"}',
        "line-too-long",
        "512 bytes, more than max_line_bytes 200",
        max_line_bytes=200,
    ),
    line("too many tokens", b'{"text": "' + b"zebra " * 40 + b'"}', "too-many-tokens", "20 fit into max_row_tokens", max_row_tokens=20),
    line("null for a label", b'{"text": "a", "label": null}', "null", "'label' is null", **LABEL),
    line("number among string labels", b'{"text": "a", "label": 1}', "wrong-type", "labels must be strings, as in the first row", **LABEL),
    line("unknown label", b'{"text": "a", "label": "z"}', "unknown-label", "the label 'z'", **LABEL, label_names=["x", "y"]),
    Case(
        "30-digit label",
        "a.jsonl",
        b'{"text": "one", "label": 0}\n{"text": "two", "label": 1}\n{"text": "a", "label": 123456789012345678901234567890}\n'
        b'{"text": "end", "label": 0}\n',
        ("{file}:3 (byte 56): ", "does not fit into a signed 64-bit"),
        ("out-of-range",),
        settings=LABEL,
    ),
    Case(
        "a line end inside an object",
        "a.jsonl",
        GOOD + b'{"text":\n"a"}\n',
        ("{file}:3 ", "not JSON"),
        ("not-json", "not-json"),
        ("one", "two"),
    ),
    Case("truncated tail", "a.jsonl", GOOD + GOOD[:20], ("{file}:3 ", "not JSON"), ("not-json",), ("one", "two")),
    Case("first row bad", "a.jsonl", b"{bad\n" + GOOD, ("{file}:1 (byte 0): ", "not JSON"), ("not-json",), ("one", "two")),
    Case(
        "bad in gzip",
        "a.jsonl.gz",
        gzip.compress(GOOD + b"{bad\n", mtime=0),
        (f"{{file}}:3 (byte {SIZE}): ",),
        ("not-json",),
        ("one", "two"),
    ),
    Case("bad in zstd", "a.jsonl.zst", _stream(GOOD + b"{bad\n", "zstd"), (f"{{file}}:3 (byte {SIZE}): ",), ("not-json",), ("one", "two")),
    Case(
        "bad in a JSON array",
        "a.json",
        b'[{"text": "one"},\n {"text": 3},\n {"text": "two"}, ["x"],\n {"text": "caf\xe9"}, {"text": "end"}]',
        ("{file}:2 (byte 19): ", "'text' is 3"),
        ("wrong-type", "not-an-object", "not-utf8"),
    ),
    Case(
        "too deep in a JSON array",
        "a.json",
        b'[{"text": "one"}, {"text": ' + b"[" * DEEP + b"]" * DEEP + b'}, {"text": "two"}, {"text": "end"}]',
        ("{file}:1 (byte 18): ", "nested too deeply"),
        ("too-deep",),
    ),
    whole("cut JSON array", "a.json", b'[{"text": "one"}, {"te', "not JSON"),
    whole("UTF-16", "a.jsonl", GOOD.decode().encode("utf-16"), "the text is UTF-16"),
    whole("UTF-16 without a mark", "a.jsonl", GOOD.decode().encode("utf-16-le"), "binary data"),
    *(
        whole(f"a Git LFS pointer as {name}", name, POINTER, "is a Git LFS pointer, not the file itself (1,503,300,328 bytes)")
        for name in POINTED
    ),
    whole("gzip cut off", "a.jsonl.gz", gzip.compress(ROWS, mtime=0)[:-20], "the compressed data end too early"),
    whole("gzip with a bad sum", "a.jsonl.gz", _bad_crc(ROWS), "damaged or not gzip data"),
    whole("not gzip", "a.jsonl.gz", GOOD, "damaged or not gzip data"),
    whole("gzip in gzip", "a.jsonl.gz", gzip.compress(gzip.compress(GOOD, mtime=0), mtime=0), "the content is gzip data"),
    whole("zstd cut off", "a.jsonl.zst", _stream(ROWS, "zstd")[:-20], "{file}"),
    whole("not zstd", "a.jsonl.zst", GOOD, "damaged or not zstd data"),
    whole("parquet by name only", "a.parquet", GOOD * 100, "{file}"),
    whole("parquet cut off", "a.parquet", parquet(TABLE)[:-30], "{file}"),
    whole("parquet as jsonl", "a.jsonl", parquet(TABLE), "the content is a parquet file"),
    whole("jsonl without the column", "a.parquet", parquet(TABLE.rename_columns(["body", "label"])), "no column 'text'"),
    whole("numbers in parquet", "a.parquet", parquet(pa.table({"text": [1, 2, 3]})), "text must be a string"),
    whole("arrow cut off", "a.arrow", arrow(TABLE)[:-40], "{file}"),
    Case("null in parquet", "a.parquet", parquet(pa.table({"text": ["one", "two", None, "end"]})), ("{file}: row 3: ", "null"), ("null",)),
    Case("null in arrow", "a.arrow", arrow(pa.table({"text": ["one", "two", None, "end"]})), ("{file}: row 3: ", "null"), ("null",)),
    Case(
        "latin-1 in arrow",
        "a.arrow",
        arrow(pa.table({"text": _not_utf8()})),
        ("{file}: row 2: ", "not UTF-8"),
        ("not-utf8",),
        ("one", "end"),
    ),
    rowed("ragged row, short", b"a", "ragged", "1 fields where the header has 2"),
    rowed("ragged row, long", b"a,b,c", "ragged", "3 fields where the header has 2"),
    rowed("latin-1 in CSV", b"caf\xe9,x", "not-utf8", "'text' is not UTF-8"),
    rowed("unterminated quote", b'"a,x', "unterminated-quote", "a quote is not closed"),
    rowed("text behind a quote", b'"a" b,x', "unterminated-quote", "text follows the closing one"),
    Case("bad line of text", "a.txt", b"one\ntwo\ncaf\xe9\nend\n", ("{file}:3 (byte 8): ", "not UTF-8: byte 0xe9"), ("not-utf8",)),
    fine("words for nothing in CSV", "a.csv", b"text\nNA\nnull\nNone\nnan\n007\n", ("NA", "null", "None", "nan", "007")),
    fine("mark, CRLF, no last end", "a.jsonl", b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n") + b'{"text": "end"}', ("one", "two", "end")),
    fine("U+2028 and escaped NUL", "a.jsonl", '{"text": "a\u2028b"}\n{"text": "c\\u0000d"}\n'.encode(), ("a\u2028b", "c\0d")),
    fine(
        "NaN and a deep value elsewhere",
        "a.jsonl",
        GOOD + b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b', "y": 1, "text": "end"}\n',
        ("one", "two", "end"),
    ),
    fine("top-level array", "a.json", json.dumps([{"text": t} for t in ("one", "two")]).encode(), ("one", "two")),
    fine("200,000 columns", "a.csv", b",".join(b"c%d" % i for i in range(200_000)) + b",text\n" + b"," * 200_000 + b"one\n", ("one",)),
)
