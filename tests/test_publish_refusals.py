"""What the place of an output refuses is said before the work, by its name and with a way out; nothing is left behind."""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import datasets
import pytest

import publish_driver
from ftcli.commands import tokenize
from ftcli.core.prepare import space
from ftcli.core.prepare.recipe import settle
from ftcli.core.prepare.space import Shortage, estimate
from ftcli.core.publishing import output_location
from ftcli.core.publishing.output_location import check_place
from ftcli.core.publishing.publish import Attempt
from ftcli.core.reports.report import filed
from ftcli.core.storage import store
from ftcli.core.storage.store import Store
from ftcli.core.training.run_lock import Claim
from ftcli.errors import EngineError, FtcliError, PublishError, StoreError
from publish_cases import NEW, OLD, as_nobody, interrupt, limited, prepare, public_folder
from reliability import size
from stores import write_store
from timing import PATIENCE, bytecodes
from tokenizing import context, corpus, small_tokenizers, without_plots, write

kinds = small_tokenizers
no_html = without_plots
public = public_folder
pytestmark = pytest.mark.fault


def refusal(call: Callable[[], object]) -> FtcliError:
    with pytest.raises(FtcliError) as error:
        call()
    return error.value


@pytest.mark.reliability(6, "an output that cannot be written is refused before the work")
@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("file/out", "Not a directory", "Part of the path is a file"),
        ("file", "exists and is not a directory", "Choose another"),
        ("full", "holds 1 entry and no ftcli-manifest.json", "Choose another"),
        ("n" * 240, "File name too long", "Choose a shorter name"),
        ("n" * 300, "File name too long", "Choose a shorter name"),
        ("deep/" + "n" * 300, "File name too long", "Choose a shorter name"),
    ],
)
def test_a_place_that_cannot_be_is_refused_by_name(name: str, words: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "theirs").touch()
    before = sorted(tmp_path.rglob("*"))
    said = refusal(lambda: check_place(tmp_path / name))
    assert isinstance(said, PublishError)
    assert words in said.message
    assert str(tmp_path) in said.message
    assert hint in said.hint
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", [".", "..", ""])
def test_the_directory_where_one_stands_is_not_exchanged(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell stood in what was removed: `ls` showed nothing."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "is the current directory" in refusal(lambda: check_place(Path(place))).message
    assert refusal(lambda: prepare(Path(place))).hint.startswith("Give a directory below it")
    prepare(Path("below"))


@pytest.mark.parametrize("name", ["out", "several/new/folders", "empty"])
def test_a_place_that_can_be_is_left_as_it_was(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    check_place(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@limited
@pytest.mark.reliability(6, "an output that this user may not write to is refused before the work")
def test_without_permission_it_is_refused_at_once_and_what_is_prepared_already_needs_none(public: Path) -> None:
    said = as_nobody(lambda: check_place(public / "out"))
    assert said.startswith(f"PublishError | cannot write {public / 'out'}: Permission denied (in {public})")
    assert "Choose an output directory that you can write to" in said
    prepare(public / "out")
    assert as_nobody(lambda: check_place(public / "out")) == "said nothing"


@limited
def test_the_run_of_another_user_is_named_and_not_said_to_be_a_lack_of_permission(public: Path) -> None:
    """Its lease can be read, and not be written: "choose an output directory that you can write to" was said of one that it may."""
    public.chmod(0o1777)
    way_on = "Wait until it has ended, ask user root to stop it, or choose another output directory."
    with Attempt.open(public / "out", "f") as attempt:
        said = as_nobody(lambda: Attempt.open(public / "out", "f"))
        assert said.startswith(f"PublishError | {public / 'out'} is being prepared by pid {os.getpid()} on ")
        assert said.endswith(f", a run of user root | {way_on}")
        silent = as_nobody(lambda: Attempt.open(public / "out", "f", wait=True, patience=0))
        assert silent.startswith("PublishError | no progress for")
        assert silent.endswith(way_on)
        attempt.directory.chmod(0o700)
        closed = as_nobody(lambda: Attempt.open(public / "out", "f"))
        assert closed == f"PublishError | {attempt.directory} belongs to a run of user root, and you have no access to it | {way_on}"
    with Claim(public / "run", pytest.fail) as claim:
        claim.take_early()
        said = as_nobody(lambda: Claim(public / "run", pytest.fail).take_early())
        assert said.startswith(f"PublishError | {public / 'run'} is in use by another training run, pid {os.getpid()} on ")
        assert said.endswith(f", a run of user root | {way_on}")


@limited
def test_what_a_run_of_another_user_left_is_said_to_be_that(public: Path) -> None:
    public.chmod(0o1777)
    left = interrupt(public / "out", "f")
    said = as_nobody(lambda: Attempt.open(public / "out", "f", wait=True))
    hint = "Ask user root to remove it, or choose another output directory."
    assert said == f"PublishError | {left} was left behind by a run of user root that has ended | {hint}"


@limited
def test_what_another_user_left_of_other_inputs_is_named_and_keeps_nothing_of_ones_own(public: Path) -> None:
    """The own working directory stayed because of it, behind a warning with a line of ftcli's source."""
    public.chmod(0o1777)
    theirs = interrupt(public / "out", "other")

    def told() -> None:
        said: list[str] = []
        with Attempt.open(public / "out", "f") as attempt:
            attempt.on_left = said.append
            attempt.publish({}, [])
        raise StoreError("; ".join(said))

    assert as_nobody(told) == f"StoreError | could not remove {theirs}: it belongs to user root | "
    assert sorted(path.name for path in public.iterdir()) == [theirs.name, "out"]


@limited
def test_the_end_of_another_users_run_is_waited_for(public: Path) -> None:
    public.chmod(0o1777)
    attempt = Attempt.open(public / "out", "f")
    ending = threading.Timer(0.3, attempt.close)
    ending.start()
    assert as_nobody(lambda: Attempt.open(public / "out", "f", wait=True)) == "said nothing"
    ending.join()


@pytest.mark.parametrize("code", ["EROFS", "EDQUOT", "ENOSPC", "EMFILE", "EACCES"])
def test_what_the_file_system_says_is_passed_on_with_its_hint(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = getattr(errno, code)

    def fail(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(output_location.Path, "mkdir", fail)
    said = refusal(lambda: check_place(tmp_path / "out"))
    assert os.strerror(number) in said.message
    assert str(tmp_path / "out") in said.message
    assert said.hint
    assert ("bytes free" in said.message) is (code in {"EDQUOT", "ENOSPC"})


# -- the whole command -------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", corpus(300), ["a", "b"] * 150)


@pytest.mark.reliability(6, "a place that cannot be is refused before the tokenizer is loaded")
def test_no_source_is_hashed_and_no_tokenizer_loaded_for_a_place_that_cannot_be(kinds, source, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(tokenize, "settle", lambda *_: pytest.fail("settled"))
    assert "Not a directory" in refusal(lambda: tokenize.run(context(kinds["bpe"], source, tmp_path / "file/out"))).message


@pytest.mark.reliability(6, "when map and save_to_disk notice", control=True)
def test_the_naive_way_does_all_the_work_before_it_notices(tmp_path: Path, tally: Callable[..., None]) -> None:
    (tmp_path / "file").touch()
    done = datasets.Dataset.from_dict({"text": corpus(50)}).map(lambda row: {"length": len(row["text"])}, keep_in_memory=True)
    with pytest.raises(NotADirectoryError):
        done.save_to_disk(str(tmp_path / "file/out"))
    tally(f"map encodes all {len(done)} rows, then save_to_disk fails")


@pytest.mark.usefixtures("no_html")
@pytest.mark.reliability(6, "an unwritable cache or report folder is a note, and the data are published")
def test_a_cache_and_a_report_folder_that_cannot_be_written_are_notes(kinds, source, tmp_path, monkeypatch):
    (tmp_path / "file").touch()

    def refuse(*_: object) -> dict[str, str]:
        raise PublishError("cannot write file/reports: Not a directory")

    monkeypatch.setattr(tokenize, "filed", filed)
    monkeypatch.setattr("ftcli.core.reports.report.write_report", refuse)
    report = tokenize.run(context(kinds["bpe"], source, tmp_path / "out", runtime__cache_dir=tmp_path / "file/cache"))
    assert Store.open(tmp_path / "out").split_names == ["train"]
    assert any(note.startswith(f"nothing is cached for the next run: cannot write {tmp_path}/file") for note in report.notes)
    assert report.notes[-1] == "no report: cannot write file/reports: Not a directory"


@pytest.mark.slow
@pytest.mark.reliability(5, "too few open files are named, and with more the same command succeeds")
def test_too_few_open_files_are_an_error_with_a_way_out(kinds, source, tmp_path):
    command = [sys.executable, "-m", "ftcli", "tokenize", str(source), "--tokenizer-path", str(kinds["bpe"]), "--tokenizer-engine", "hf"]
    command += ["--output-dir", str(tmp_path / "out"), "--json"]

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        bound = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # noqa: E731 - for the child only
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, preexec_fn=bound)

    done = run(7)
    assert done.returncode == 1, done.stdout
    said = json.loads(done.stdout.splitlines()[-1])["error"]
    assert "Too many open files" in said["message"]
    assert said["code"] != "bug", said
    assert not (tmp_path / "out").exists()
    assert run(64).returncode == 0


# -- space -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_html")
@pytest.mark.parametrize("values", [{}, {"packing__max_length": 8}, {"packing__strategy": "bfd"}], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_the_estimate_is_near_what_the_output_takes(values, packed, kinds, tmp_path):
    source = write(tmp_path / "data.jsonl", corpus(3_000))
    if packed:
        source = tmp_path / "data.jsonl.gz"
        source.write_bytes(gzip.compress((tmp_path / "data.jsonl").read_bytes()))
    made = context(kinds["bpe"], source, tmp_path / "out", **values)
    told = estimate(made, settle(made))
    tokenize.run(context(kinds["bpe"], source, tmp_path / "out", **values))
    taken = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.arrow"))
    assert 0.6 * taken < told < 1.6 * taken


@pytest.mark.usefixtures("no_html")
def test_where_there_is_room_for_a_token_a_byte_no_text_is_encoded(kinds, tmp_path):
    made = context(kinds["bpe"], write(tmp_path / "data.jsonl", corpus(300)), tmp_path / "out")
    recipe = settle(made)
    near = estimate(made, recipe)
    exact = estimate(made, recipe, near)
    recipe = replace(recipe, tokenizer=None)
    with pytest.raises(EngineError, match="first rows"):
        estimate(made, recipe)
    most = estimate(made, recipe, 10 * near)
    assert exact == near < most <= 10 * near


def test_an_empty_text_needs_no_space(kinds, tmp_path):
    made = context(kinds["bpe"], write(tmp_path / "data.jsonl", [""] * 5), tmp_path / "out")
    assert estimate(made, settle(made)) == 0


@pytest.mark.reliability(5, "a run that will not fit stops early, with both figures")
def test_a_run_stops_when_what_the_shards_took_shows_that_the_rest_will_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(space, "free_bytes", lambda _: 1_000)
    shortage = Shortage(tmp_path, 1_000)
    shortage.finished(500, {"files": [{"bytes": 600}, {"bytes": 400}]})
    said = refusal(lambda: shortage.finished(100, {"files": [{"bytes": 900}]}))
    assert "needs about 1,266 more bytes, judging by what was written so far; only 1,000 are free there" in said.message
    assert "the same command continues" in said.hint
    Shortage(tmp_path, 10).finished(10, {"files": [{"bytes": 10**9}]})

    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "begun").write_bytes(bytes(600))
    begun = Shortage(tmp_path, 1_000)
    begun.finished(500, {"files": [{"bytes": 1_500}]})  # of 1,500 bytes more, 600 are there already


# -- readers -----------------------------------------------------------------------------------------------------------


def test_a_store_that_was_replaced_gives_one_version_or_an_error(tmp_path: Path) -> None:
    rows = {name: [([number] * 9, None)] * 5 for number, name in enumerate(("train", "validation"))}
    write_store(tmp_path / "old", rows)
    write_store(tmp_path / "new", {**rows, "train": [([7] * 9, None)] * 5})
    opened = Store.open(tmp_path / "old")
    train = opened.split("train")
    (tmp_path / "old").rename(tmp_path / "aside")
    (tmp_path / "new").rename(tmp_path / "old")
    assert not opened.is_current()
    assert set(train.rows([0]).input_ids.values.tolist()) == {0}
    assert opened.split("train") is train
    with pytest.raises(StoreError, match="was replaced by another version while it was open"):
        opened.split("validation")
    shutil.rmtree(tmp_path / "old")
    with pytest.raises(StoreError, match="was replaced by another version while it was open"):
        opened.split("validation")


def test_a_store_that_is_replaced_while_it_is_opened_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("one", "two", "three")):
        write_store(tmp_path / name, {"train": [([number] * 9, None)] * (5 + number)})
    waiting = ["two", "three"]
    real = store.check_files

    def meddled(path: Path, manifest: dict, **options: int) -> None:
        if waiting:
            shutil.rmtree(path)
            (tmp_path / waiting.pop(0)).rename(path)
        real(path, manifest, **options)

    monkeypatch.setattr(store, "check_files", meddled)
    opened = Store.open(tmp_path / "one")
    assert opened.manifest["splits"]["train"]["rows"] == len(opened.split("train")) == 7


def test_a_store_that_may_not_be_opened_or_whose_files_go_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = write_store(tmp_path / "out", {"train": [([1], None)]})
    (tmp_path / "out/train/state.json").unlink()
    with pytest.raises(StoreError, match=r"out/train cannot be opened: .*state\.json"):
        opened.split("train")
    monkeypatch.setattr(store.os, "open", lambda *_, **__: (_ for _ in ()).throw(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(StoreError, match="out cannot be opened: Permission denied"):
        Store.open(tmp_path / "out")


READER = """
import mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
    first = view[:]
    print("mapped", flush=True)
    while sys.stdin.readline().strip() == "again":
        print("same" if view[:] == first else "other", flush=True)
"""
REPLACEMENTS = size(10, 100)


def read_through(file: Path, replace: Callable[[int], object], times: int) -> tuple[list[str], int]:
    """What a process that has a data file mapped sees after each replacement, and its exit code."""
    reader = subprocess.Popen([sys.executable, "-c", READER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdin is not None
    assert reader.stdout is not None
    assert reader.stdout.readline() == "mapped\n"
    said = []
    for number in range(times):
        replace(number)
        try:
            reader.stdin.write("again\n")
            reader.stdin.flush()
        except BrokenPipeError:
            break
        said.append(reader.stdout.readline().strip())
    with suppress(BrokenPipeError):
        reader.stdin.close()
    reader.stdout.close()
    return said, reader.wait(PATIENCE)


@pytest.mark.reliability(13, "a reader keeps its own version through replacements")
def test_a_reader_never_notices_a_replacement(tmp_path: Path, tally: Callable[..., None]) -> None:
    output = tmp_path / "out"
    publish_driver.prepare(output, OLD)
    file = output / next(iter(publish_driver.content(OLD)))
    said, code = read_through(file, lambda number: publish_driver.prepare(output, (NEW, OLD)[number % 2]), REPLACEMENTS)
    assert (said, code) == (["same"] * REPLACEMENTS, 0)
    tally(replacements=REPLACEMENTS)


@pytest.mark.reliability(13, "a reader of what save_to_disk overwrites", control=True)
def test_a_reader_of_what_save_to_disk_overwrites_dies_or_sees_other_data(tmp_path: Path, tally: Callable[..., None]) -> None:
    datasets.Dataset.from_dict({"x": list(range(100_000))}).save_to_disk(str(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("*.arrow")
    said, code = read_through(file, lambda _: datasets.Dataset.from_dict({"x": [1]}).save_to_disk(str(tmp_path / "out")), 1)
    assert said != ["same"]
    tally("save_to_disk: the reader dies by SIGBUS" if code == -signal.SIGBUS else "save_to_disk: the reader gets other data")


@pytest.mark.reliability(12, "opening checks every file at some hundred instructions each")
def test_hundreds_of_files_are_checked_at_some_hundred_instructions_each(tmp_path: Path) -> None:
    write_store(tmp_path / "out", {"train": [([1], None)] * 300}, shards=300)
    assert bytecodes(lambda: Store.open(tmp_path / "out")) < 300 * 2_000  # 640 a file measured, whatever it holds
    (tmp_path / "out/train/data-00234-of-00300.arrow").write_bytes(b"")
    with pytest.raises(StoreError, match=r"data-00234-of-00300\.arrow has 0 bytes"):
        Store.open(tmp_path / "out")
