"""Sources and prepared data in an object store, from the command line."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import fsspec  # noqa: F401 - the module that is patched below
import pytest

from ftcli.commands import inspect, tokenize
from ftcli.context import Context, Quiet
from ftcli.core.files import mirror, objects
from ftcli.core.files.lease import Lease
from ftcli.core.files.mirror import mirrored, origin
from ftcli.core.files.objects import url_of
from ftcli.core.publishing import ranks
from ftcli.core.reading.find import Finder
from ftcli.core.storage.store import Store
from ftcli.errors import DataError, MissingExtraError, PublishError, UsageError
from ftcli.pluginmanager import Plugins
from ftcli.records import MANIFEST_NAME, Report
from ftcli.settings import Settings, update
from ftcli.testing import run, tiny_tokenizer
from s3_server import KEY, SECRET, Server
from timing import PATIENCE, until
from tokenizing import context, corpus, manifest, small_tokenizers, without_plots

kinds = small_tokenizers
no_html = without_plots
URL = "s3://bucket/sets/name"
KEYS = ("bucket/raw/train/a.jsonl", "bucket/raw/train/b.jsonl", "bucket/raw/test/c.jsonl", "bucket/raw/README.md")


def lines(start: int) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in corpus(20, start)).encode()


@pytest.fixture
def raw(s3: Server) -> Server:
    for number, key in enumerate(KEYS):
        s3.put(key, lines(20 * number))
    return s3


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return update(Settings(), {"runtime.cache_dir": tmp_path / "cache"})


def found(settings: Settings, *sources: str) -> list[tuple[str, str | None]]:
    finder = Finder(update(settings, {"dataset.sources": list(sources)}), Plugins(allow=()).registry("source"))
    return [(file.path.partition("/objects/s3/")[2], file.split) for file in finder.find()]


@pytest.mark.parametrize(
    ("word", "url"),
    [
        ("s3://bucket/a/b.jsonl", "s3://bucket/a/b.jsonl"),
        (Path("s3://bucket/a/"), "s3://bucket/a"),
        ("s3a://bucket/*.csv", "s3a://bucket/*.csv"),
        ("corpus/s3.jsonl", None),
        ("org/name", None),
        ("/tmp/s3:/x", None),
    ],
)
def test_what_is_an_address(word: str | Path, url: str | None) -> None:
    assert url_of(word) == url


@pytest.mark.parametrize(("tries", "said"), [("3", 0), ("4", 1)])
def test_a_store_that_is_asked_again_and_again_is_spoken_of(tries: str, said: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from loguru import logger

    environ = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_MAX_ATTEMPTS": tries,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("random.random", lambda: 0.001)  # of the seconds that botocore waits
    told: list[str] = []
    sink = logger.add(told.append, format="{message}")
    try:
        with pytest.raises(DataError, match="Could not connect"):
            objects.ObjectStore("s3://bucket/a").info("s3://bucket/a")
    finally:
        logger.remove(sink)
    assert len(told) == said
    for words in told:
        assert '3 attempts have failed: Could not connect to the endpoint URL: "http://127.0.0.1:9/bucket/a"' in words
        assert "tried 4 times" in words


@pytest.mark.parametrize("address", ["hdfs://node/x", "file:///tmp/x", "memory://x", "http://host/x", "S3://bucket/x"])
@pytest.mark.parametrize(
    "words",
    [
        ("tokenize", "data.txt", "--tokenizer-path", "tokenizer", "--output-dir"),
        ("train", "--dataset", "prepared", "--output-dir"),
        ("export", "prepared", "--format", "jsonl", "--output"),
        ("sample-data", "--rows", "10", "--output"),
        ("train-tokenizer", "data.txt", "--output"),
        ("merge", "adapter", "--output"),
    ],
    ids=lambda words: words[0],
)
def test_an_address_of_another_kind_makes_no_directory_of_its_name(words: tuple[str, ...], address: str, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("one\ntwo\n")
    ended = run(*words, address, cwd=tmp_path)
    assert ended.exit_code == 2, ended.stderr
    assert f"{address.partition(':')[0]}://{address.partition(':')[2].lstrip('/')}: " in ended.stderr
    assert "into a directory" in ended.stderr
    assert ("Write only the path: /tmp/x" in ended.stderr) == address.startswith("file:")
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


@pytest.mark.parametrize("address", ["s3://", "s3:", "s3:///bucket/name", "gs:///name", "hdfs://"])
def test_an_address_without_a_bucket_is_no_output(address: str, tmp_path: Path) -> None:
    """As an empty variable leaves it: s3://$BUCKET/name."""
    (tmp_path / "data.txt").write_text("one\ntwo\n")
    words = ("tokenize", "data.txt", "--tokenizer-path", "tokenizer")
    for more, variables in ((("--output-dir", address), {}), ((), {"DATASET_OUTPUT_DIR": address})):
        ended = run(*words, *more, cwd=tmp_path, env=variables)
        assert (ended.exit_code, address in ended.stderr, "no bucket" in ended.stderr) == (2, True, True), ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


@pytest.mark.parametrize("address", ["s3://", "s3:///bucket/name"])
def test_an_address_without_a_bucket_is_no_source_and_no_folder(address: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no bucket") as caught:
        url_of(address)
    assert "s3://bucket/name" in caught.value.hint
    ended = run("sample-data", "--rows", "10", "--output", address, cwd=tmp_path)
    assert (ended.exit_code, "no bucket" in ended.stderr or "into a directory" in ended.stderr) == (2, True), ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--report-dir", "--cache-dir"])
def test_reports_and_caches_are_put_into_directories(flag: str, tmp_path: Path) -> None:
    ended = run("verify", "env", flag, "s3://bucket/x", cwd=tmp_path)
    assert (ended.exit_code, "it must be a local directory" in ended.stderr) == (2, True), ended.stderr
    assert not list(tmp_path.iterdir())


def test_an_address_with_a_secret_is_refused_without_it() -> None:
    with pytest.raises(UsageError, match="the address contains a user name or secret") as caught:
        url_of("s3://key:word@bucket/x")
    assert "word@" not in caught.value.message


def test_objects_prefixes_and_patterns_are_read_as_files(raw: Server, settings: Settings) -> None:
    assert found(settings, "s3://bucket/raw/train/a.jsonl") == [(KEYS[0], "train")]
    assert found(settings, "s3://bucket/raw/**/*.jsonl", "s3://bucket/raw/train/b.jsonl") == [
        (KEYS[2], "test"),
        (KEYS[0], "train"),
        (KEYS[1], "train"),
    ]
    assert sorted(found(settings, "s3://bucket/raw")) == [(KEYS[2], "test"), (KEYS[0], "train"), (KEYS[1], "train")]
    assert found(settings, "validation=s3://bucket/raw/test/c.jsonl") == [(KEYS[2], "validation")]


def test_an_address_in_capitals_is_told_in_small_letters(settings: Settings) -> None:
    with pytest.raises(DataError, match="S3://bucket/raw: no such file") as caught:
        found(settings, "S3://bucket/raw")
    assert caught.value.hint == "Did you mean s3://bucket/raw?"


def test_inspect_asks_for_the_tokenizer_of_sources_in_a_store(raw: Server, settings: Settings) -> None:
    for source in ("s3://bucket/raw/x y.jsonl", f"train=s3://{KEYS[0]}"):
        with pytest.raises(UsageError, match=f"^{source.partition('=')[2] or source} is not prepared") as caught:
            inspect.run(Context.make({"dataset.sources": [source], "runtime.cache_dir": settings.runtime.cache_dir}))
        assert "--tokenizer-path" in caught.value.hint


def test_an_object_is_copied_once_and_again_when_it_changes(raw: Server, settings: Settings) -> None:
    path = mirrored("s3://bucket/raw/train", settings)[0]
    reads = raw.count("GET", ".jsonl")
    assert reads == 2
    assert mirrored("s3://bucket/raw/train", settings) == (path, "")
    assert raw.count("GET", ".jsonl") == reads
    raw.put(KEYS[0], lines(500))
    mirrored("s3://bucket/raw/train", settings)
    assert raw.count("GET", ".jsonl") == reads + 1
    copy = Path(path) / "a.jsonl"
    assert copy.read_bytes() == lines(500)
    copy.write_bytes(b"touched")
    mirrored("s3://bucket/raw/train", settings)
    assert copy.read_bytes() == lines(500)
    assert origin(str(copy), settings)["url"] == f"s3://{KEYS[0]}"
    del raw.objects[KEYS[1]]
    mirrored("s3://bucket/raw/train", settings)
    assert not (Path(path) / "b.jsonl").exists()


@pytest.mark.parametrize("name", ["part[1].jsonl", "what?.jsonl", "all*.jsonl"])
def test_an_object_with_signs_of_a_pattern_in_its_name_is_itself(s3: Server, settings: Settings, name: str) -> None:
    for key in (name, "part1.jsonl", "whats.jsonl", "all1.jsonl", "set[2]/a.jsonl"):
        s3.put(f"bucket/raw/{key}", lines(len(key)))
    assert found(settings, f"s3://bucket/raw/{name}") == [(f"bucket/raw/{name}", "train")]
    assert found(settings, "s3://bucket/raw/set[2]") == [("bucket/raw/set[2]/a.jsonl", "train")]
    assert ("bucket/raw/part1.jsonl", "train") in found(settings, "s3://bucket/raw/part[1-3].jsonl")


def test_a_prefix_becomes_an_object_and_an_object_a_prefix(s3: Server, settings: Settings) -> None:
    s3.put("bucket/raw/x.jsonl", lines(0))
    s3.put("bucket/raw/deep/y.jsonl/z.jsonl", lines(1))
    mirrored("s3://bucket/raw", settings)
    s3.objects.clear()
    s3.put("bucket/raw/x.jsonl/z.jsonl", lines(2))
    s3.put("bucket/raw/deep", lines(3))
    path = Path(mirrored("s3://bucket/raw", settings)[0])
    assert (path / "x.jsonl/z.jsonl").read_bytes() == lines(2)
    assert (path / "deep").read_bytes() == lines(3)
    s3.objects.clear()
    s3.put("bucket/raw/x.jsonl", lines(4))
    s3.put("bucket/raw/deep/y.jsonl", lines(5))
    assert Path(mirrored("s3://bucket/raw/x.jsonl", settings)[0]).read_bytes() == lines(4)
    assert (Path(mirrored("s3://bucket/raw/deep", settings)[0]) / "y.jsonl").read_bytes() == lines(5)


def test_emptied_prefixes_leave_no_folders(raw: Server, settings: Settings) -> None:
    path = Path(mirrored("s3://bucket/raw", settings)[0])
    for key in KEYS[:2]:
        del raw.objects[key]
    mirrored("s3://bucket/raw", settings)
    assert not (path / "train").exists()
    assert (path / "test").is_dir()


def test_an_object_with_objects_below_it_is_named(s3: Server, settings: Settings) -> None:
    s3.put("bucket/raw/x", lines(0))
    s3.put("bucket/raw/x/y.jsonl", lines(1))
    both = r"s3://bucket/raw/x is both an object and a prefix of others, such as s3://bucket/raw/x/y.jsonl"
    with pytest.raises(DataError, match=both):
        mirrored("s3://bucket/raw", settings)
    mirrored("s3://bucket/raw/x", settings)  # alone it has its place
    with pytest.raises(DataError, match=both):
        mirrored("s3://bucket/raw/x/y.jsonl", settings)
    del s3.objects["bucket/raw/x"]
    mirrored("s3://bucket/raw/x/y.jsonl", settings)
    s3.put("bucket/raw/x", lines(0))
    with pytest.raises(DataError, match=both):
        mirrored("s3://bucket/raw/x", settings)


def test_an_object_that_changes_while_it_is_read_is_read_again(raw: Server, settings: Settings) -> None:
    changed = []

    def change(request: object) -> None:
        if getattr(request, "method", "") == "GET" and KEYS[0] in getattr(request, "key", "") and not changed:
            changed.append(raw.put(KEYS[0], lines(700)))

    raw.after = change  # type: ignore[assignment]
    path, _ = mirrored(f"s3://{KEYS[0]}", settings)
    assert changed
    assert Path(path).read_bytes() == lines(700)


def test_copying_is_work_for_those_who_wait(raw: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[int] = []
    monkeypatch.setattr(Lease, "beat", lambda *_, **__: beats.append(1))
    monkeypatch.setattr(objects, "BLOCK_BYTES", 500)
    mirrored("s3://bucket/raw/train", settings)
    assert len(beats) == sum(-(-len(raw.objects[key].data) // 500) for key in KEYS[:2]) > 4


def test_who_waits_for_copies_is_told_for_whom(raw: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    progress = Quiet()
    monkeypatch.setattr(progress, "say", said.append)
    monkeypatch.setattr(ranks, "FIRST_SECONDS", 0.0)
    folder = tmp_path / "cache/objects/s3"
    folder.mkdir(parents=True)
    other = Lease.take(folder / ".bucket.copying.attempt", folder / "bucket", wait=False)
    sources = update(settings, {"dataset.sources": ["s3://bucket/raw/train"]})
    finder = Finder(sources, Plugins(allow=()).registry("source"), progress)
    files: list[int] = []
    waiting = threading.Thread(target=lambda: files.append(len(finder.find())), daemon=True)
    waiting.start()
    until(lambda: said)
    other.remove()
    waiting.join(PATIENCE)
    assert files == [2]
    assert f"waits for pid {os.getpid()} on" in said[0]
    assert "which copies s3://bucket/raw/train: last heartbeat" in said[0]


def test_a_process_that_lost_the_right_to_copy_leaves_it_to_the_other(settings: Settings, tmp_path: Path) -> None:
    with mirror._alone(tmp_path, "bucket", settings, lambda _: None) as lost:
        shutil.rmtree(lost.directory)
        other = Lease.take(lost.directory, tmp_path / "bucket", wait=False)
    assert not lost.held
    assert other.valid()
    other.remove()


@pytest.mark.parametrize("key", ["bucket/raw/../../../out.jsonl", "bucket/raw//x.jsonl"])
def test_a_key_that_is_no_file_name_is_refused(raw: Server, settings: Settings, key: str, tmp_path: Path) -> None:
    raw.put(key, b"{}")
    with pytest.raises(DataError, match="this name is not usable as a file name"):
        mirrored("s3://bucket/raw", settings)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_what_cannot_be_copied_is_named(raw: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"s3://bucket/nothing: no object has this name or prefix"):
        mirrored("s3://bucket/nothing", settings)
    monkeypatch.setattr(mirror, "free_bytes", lambda _: 10)
    with pytest.raises(DataError, match=r"2 objects \([\d,]+ bytes\) would have to be copied to .*, where only 10 bytes are free"):
        mirrored("s3://bucket/raw/train", settings)


def test_without_s3fs_the_extra_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # where an earlier test has left it
    monkeypatch.setenv("AWS_DEFAULT_REGION", "nowhere")  # no client of an earlier test
    with pytest.raises(MissingExtraError, match=r"s3://bucket/x: s3:// needs s3fs") as caught:
        mirrored("s3://bucket/x", settings)
    assert caught.value.hint == "Run: pip install 'ftcli[s3]'"


@pytest.mark.usefixtures("no_html")
def test_parts_with_a_cache_folder_each_are_of_one_job(raw: Server, kinds: Mapping[str, Path], tmp_path: Path) -> None:
    def tokenized(cache: str, part: str | None, finish: bool = False, out: str = "out") -> Report:
        values = {"runtime__cache_dir": tmp_path / cache, "dataset__shard_bytes": 300}
        return tokenize.run(context(kinds["bpe"], ["s3://bucket/raw/train"], tmp_path / out, **values), part, finish)

    for number in (1, 2):
        tokenized(f"cache-{number}", f"{number}/2")
        raw.clock += 1000  # copied at another time
    tokenized("cache-3", None, finish=True)
    whole = tokenized("cache-1", None, out="whole")
    assert manifest(tmp_path / "out")["content_hash"] == whole.metrics["content_hash"]


@pytest.mark.usefixtures("no_html")
def test_parts_that_read_other_versions_of_an_object_are_of_two_jobs(raw: Server, kinds: Mapping[str, Path], tmp_path: Path) -> None:
    def tokenized(cache: str, part: str | None, finish: bool = False) -> Report:
        values = {"runtime__cache_dir": tmp_path / cache, "dataset__shard_bytes": 300}
        return tokenize.run(context(kinds["bpe"], ["s3://bucket/raw/train"], tmp_path / "out", **values), part, finish)

    tokenized("cache-1", "1/2")
    raw.put(KEYS[0], b"".join(reversed(raw.objects[KEYS[0]].data.splitlines(keepends=True))))
    tokenized("cache-2", "2/2")
    with pytest.raises(PublishError, match=r"1/2 .* not finished|1 of 2 parts are not finished: 1/2"):
        tokenized("cache-2", None, finish=True)


@pytest.mark.usefixtures("no_html")
def test_another_set_in_the_store_is_said_by_every_part_and_costs_the_finish_nothing(
    raw: Server, kinds: Mapping[str, Path], tmp_path: Path
) -> None:
    def tokenized(part: str | None, finish: bool = False, **values: object) -> Report:
        values = {"runtime__cache_dir": tmp_path / "cache", "dataset__output_dir": Path(URL), **values}
        return tokenize.run(context(kinds["bpe"], [f"s3://{KEYS[0]}"], tmp_path / "out", **values), part, finish)

    tokenized(None, packing__min_length=3)
    with pytest.raises(PublishError, match=rf"{URL} holds other prepared data \(packing.min_length: 3 there, 1 now\)"):
        tokenized("1/1")
    tokenized("1/1", runtime__overwrite=True)
    for _ in range(2):
        with pytest.raises(PublishError, match=f"{URL} holds prepared data with another fingerprint") as caught:
            tokenized(None, finish=True)
        assert "--finish --overwrite" in caught.value.hint
        assert [path for path in (tmp_path / "cache/outgoing").iterdir() if path.name.endswith(".parts")]
    assert tokenized(None, finish=True, runtime__overwrite=True).metrics["rows_read"] == 20


@pytest.mark.usefixtures("nursery")
@pytest.mark.slow
def test_from_store_to_store_and_back(raw: Server, tmp_path: Path) -> None:
    """One story, because each command costs seconds."""
    tiny_tokenizer(tmp_path / "tokenizer")
    words = ("tokenize", "s3://bucket/raw/**/*.jsonl", "--tokenizer-path", "tokenizer", "--tokenizer-engine", "hf", "--num-proc", "1")
    output = ("--output-dir", URL, "--cache-dir", "cache", "--json")
    plain = run(*words, "--output-dir", "plain", "--cache-dir", "cache", "--json", cwd=tmp_path)
    assert plain.exit_code == 0, plain.stderr
    first = run(*words, *output, cwd=tmp_path)
    assert first.exit_code == 0, first.stderr
    assert first.report["paths"]["output"] == URL
    assert first.report["metrics"]["content_hash"] == plain.report["metrics"]["content_hash"]
    assert json.loads((tmp_path / "ftcli-reports/tokenize.json").read_text(encoding="utf-8"))["paths"]["output"] == URL
    manifest = json.loads(raw.objects[f"bucket/sets/name/{MANIFEST_NAME}"].data)
    assert sorted(file["url"] for file in manifest["sources"]) == sorted(f"s3://{key}" for key in KEYS[:3])

    raw.requests.clear()
    again = run(*words, *output[:2], "--cache-dir", "elsewhere", "--json", cwd=tmp_path)
    assert again.report["metrics"]["reused"] is True
    assert raw.count("PUT") == 0  # not even a probe
    raw.put(KEYS[0], lines(900))
    other = run(*words, *output, cwd=tmp_path)
    assert other.exit_code == 1
    assert f"{URL} holds prepared data with another fingerprint" in other.report["error"]["message"]
    assert raw.count("PUT", "versions") == 0
    replaced = run(*words, *output, "--overwrite", cwd=tmp_path)
    assert replaced.exit_code == 0, replaced.stderr

    fetched = {"RUNTIME_CACHE_DIR": str(tmp_path / "fetched")}
    looked = run("inspect", URL, "--tokenizer-path", "tokenizer", "--json", cwd=tmp_path, env=fetched)
    assert looked.exit_code == 0, looked.stderr
    assert looked.report["metrics"]["rows"] == 40
    (copy,) = (tmp_path / "fetched/sets").iterdir()
    assert Store.open(copy).manifest["content_hash"] == replaced.report["metrics"]["content_hash"]
    reads = raw.count("GET", "versions/")
    checked = run("verify", "--dataset", URL, "--tokenizer-path", "tokenizer", "--select", "FT201", "--json", cwd=tmp_path, env=fetched)
    assert [check["status"] for check in checked.report["checks"]] == ["pass"], checked.stderr
    exported = run("export", URL, "--format", "jsonl", "--output", "rows", "--json", cwd=tmp_path, env=fetched)
    assert exported.exit_code == 0, exported.stderr
    assert raw.count("GET", "versions/") == reads  # fetched once
    whole = run("cache", "verify", URL, "--json", cwd=tmp_path)
    assert (whole.exit_code, whole.report["metrics"]["damaged"]) == (0, 0)
    key = next(key for key in raw.objects if key.endswith(".arrow") and replaced.report["metrics"]["content_hash"] in key)
    raw.put(key, b"\0" * len(raw.objects[key].data))
    damaged = run("cache", "verify", URL, "--json", cwd=tmp_path)
    assert (damaged.exit_code, damaged.report["metrics"]["damaged"]) == (1, 1)
    assert f"s3://{key}" in str(damaged.report["details"]["table"]["rows"])
    assert "Remove the damaged objects" in damaged.report["checks"][0]["fix"]
    del raw.objects[key]
    mended = run(*words, *output, cwd=tmp_path)
    assert mended.exit_code == 0, mended.stderr
    assert run("cache", "verify", URL, "--json", cwd=tmp_path).exit_code == 0
    why = run("cache", "why", URL, "plain", "--json", cwd=tmp_path)
    assert (why.exit_code, why.report["details"]["differences"]["head"]) == (0, ["input", URL, "plain"]), why.stderr
    listed = run("cache", "ls", URL, cwd=tmp_path)
    assert (listed.exit_code, f"which {URL} is not" in listed.stderr) == (2, True), listed.stderr

    for refused in (
        ("train", "--dataset", URL, "--output-dir", "s3://bucket/run"),
        ("export", URL, "--format", "jsonl", "--output", "s3://bucket/x"),
    ):
        ended = run(*refused, cwd=tmp_path)
        assert (ended.exit_code, "can only go into a directory" in ended.stderr) == (2, True)
    written = [first, again, other, replaced, looked, checked, exported, whole, damaged]
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    left += b"".join(stored.data for stored in raw.objects.values()) + "".join(f"{one.stdout}{one.stderr}" for one in written).encode()
    for secret in (KEY, SECRET):
        assert secret.encode() not in left
    assert URL.encode() in left  # the search finds what is there,
    assert any(KEY in request.headers.get("authorization", "") for request in raw.requests)  # and the credentials were used


@pytest.mark.usefixtures("nursery")
@pytest.mark.slow
def test_parts_are_made_in_a_shared_cache_folder_and_published_by_finish(raw: Server, tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path / "tokenizer")
    words = ("tokenize", "s3://bucket/raw/train", "--tokenizer-path", "tokenizer", "--tokenizer-engine", "hf", "--num-proc", "1", "--json")
    shared = ("--set", "dataset.shard_bytes=300", "--cache-dir", "cache", "--output-dir")
    plain = run(*words, *shared, "plain", cwd=tmp_path)
    early = run(*words, *shared, URL, "--finish", cwd=tmp_path)
    assert (early.exit_code, "no part of this job exists" in early.report["error"]["message"]) == (1, True)
    assert "--cache-dir" in early.report["error"]["hint"]
    for part, left in (("2/2", 1), ("1/2", 0)):
        made = run(*words, *shared, URL, "--shard", part, cwd=tmp_path)
        assert (made.exit_code, made.report["metrics"]["parts_left"]) == (0, left), made.stderr
        assert made.report["metrics"]["shards"] > 1
        assert raw.count("PUT", "sets/name/versions") == 0
    finished = run(*words, *shared, URL, "--finish", cwd=tmp_path)
    assert finished.exit_code == 0, finished.stderr
    assert finished.report["metrics"]["content_hash"] == plain.report["metrics"]["content_hash"]
    assert f"bucket/sets/name/{MANIFEST_NAME}" in raw.objects
    assert not [path for path in (tmp_path / "cache/outgoing").iterdir() if "parts" in path.name]
    again = run(*words, *shared, URL, "--finish", cwd=tmp_path)
    assert again.report["metrics"]["reused"] is True
