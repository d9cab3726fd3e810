"""Hashes, seals and the manifest: every damage is found and named."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcli.core.files import manifest
from ftcli.core.files.manifest import check_published, fingerprint, hash_bytes, hash_file, read_manifest
from ftcli.errors import StoreError
from publish_cases import delete, flip, prepare, truncate, zero_tail


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


# -- hashes and seals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, manifest.BLOCK_BYTES - 1, manifest.BLOCK_BYTES, 2 * manifest.BLOCK_BYTES + 7])
def test_a_file_is_hashed_like_its_bytes(size: int, tmp_path: Path) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert hash_file(tmp_path / "file") == hash_bytes(data)
    assert len(hash_bytes(data)) == 32


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(st.text(), documents, max_size=5)


@given(mappings)
def test_the_fingerprint_ignores_the_order_of_keys_and_nothing_else(document: dict[str, Any]) -> None:
    key = fingerprint(document)
    assert fingerprint(dict(reversed(document.items()))) == key
    assert fingerprint({**document, "one more": 1}) != key
    assert fingerprint({"inside": document}) != key


def test_a_fingerprint_of_not_a_number_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        fingerprint({"x": float("nan")})


@given(mappings.filter(lambda document: "seal" not in document), st.booleans(), st.data())
def test_a_sealed_document_comes_back_and_no_flipped_bit_goes_unnoticed(
    document: dict[str, Any], readable: bool, data: st.DataObject
) -> None:
    sealed = bytearray(manifest.seal(document, readable=readable))
    assert manifest.unseal(bytes(sealed)) == document
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError):  # noqa: PT011 - from the decoder, the JSON parser or the seal
        manifest.unseal(bytes(sealed))


def test_a_flipped_bit_that_leaves_the_meaning_of_a_sealed_document_is_noticed_too() -> None:
    sealed = manifest.seal({"x": 1e16})
    assert json.loads(sealed) == json.loads(sealed.replace(b"1e+16", b"1E+16"))
    with pytest.raises(ValueError, match="was changed after ftcli wrote it"):
        manifest.unseal(sealed.replace(b"1e+16", b"1E+16"))


# -- damage ------------------------------------------------------------------------------------------------------------


def swap(path: Path, _: float) -> None:
    other = path.with_name("b.arrow" if path.name == "a.arrow" else "a.arrow")
    for source, target in ((path, "x"), (other, path.name), (path.with_name("x"), other.name)):
        source.rename(path.with_name(target))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("pristine") / "out"
    prepare(output)
    return output


@settings(max_examples=100, deadline=None)
@given(
    damage=st.sampled_from([flip, truncate, zero_tail, delete, swap]),
    victim=st.sampled_from(["train/a.arrow", "train/b.arrow", "ftcli-manifest.json"]),
    share=st.floats(0, 0.999),
)
def test_every_damage_is_found_by_the_full_check_and_all_but_a_flipped_bit_on_opening(
    damage: Callable[[Path, float], None], victim: str, share: float, pristine: Path
) -> None:
    if damage is swap and victim.endswith("json"):
        return
    copy = shutil.copytree(pristine, pristine.with_name("copy"))
    try:
        check_published(copy, full=True)
        damage(copy / victim, share)
        with pytest.raises(StoreError) as found:
            check_published(copy, full=True)
        assert victim in found.value.message or damage in {delete, swap}
        if damage is not flip or victim.endswith("json"):
            with pytest.raises(StoreError):
                check_published(copy)
    finally:
        shutil.rmtree(copy)


def test_the_difference_is_named(output: Path) -> None:
    prepare(output)
    flip(output / "train/a.arrow", 0.5)
    check_published(output)
    with pytest.raises(StoreError, match=r"out/train/a\.arrow has the content hash \w{32} instead of \w{32}"):
        check_published(output, full=True)
    flip(output / "train/a.arrow", 0.01)
    with pytest.raises(StoreError, match=r"a\.arrow differs in its first or last 64 KiB"):
        check_published(output)
    truncate(output / "train/a.arrow", 0.5)
    with pytest.raises(StoreError, match=r"a\.arrow has 150,000 bytes instead of 300,000"):
        check_published(output)
    delete(output / "train/a.arrow", 0)
    with pytest.raises(StoreError, match=r"a\.arrow is missing") as found:
        check_published(output)
    assert "--overwrite" in found.value.hint


def test_a_file_that_cannot_be_read_is_named(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(output)

    def fail(file: IO[bytes]) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))

    monkeypatch.setattr(manifest, "_digest", fail)
    with pytest.raises(StoreError, match="cannot be read: Input/output error"):
        check_published(output, full=True)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.EACCES, "You have no read permission"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "disk or server failed"),
        (errno.ESTALE, "disk or server failed"),
    ],
)
@pytest.mark.parametrize("victim", ["a.arrow", "ftcli-manifest.json"])
def test_a_file_that_cannot_be_opened_is_not_called_damaged(
    output: Path, victim: str, code: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(output)
    real = os.open

    def refused(path: Path | str, *rest: Any, **more: Any) -> int:
        if str(path).endswith(victim):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StoreError, match=f"{victim} cannot be read: {os.strerror(code)}") as found:
        check_published(output)
    assert hint in found.value.hint


def test_where_nothing_is_prepared_there_is_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file", tmp_path / "absent"):
        assert read_manifest(path) is None
        with pytest.raises(StoreError, match="holds no data prepared by ftcli"):
            check_published(path)


def test_a_manifest_that_is_unreadable_foreign_or_of_another_format_is_refused(output: Path) -> None:
    path = output / "ftcli-manifest.json"
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be read: Is a directory"):
        read_manifest(output)
    path.rmdir()
    for text in ("[]", '{"schema": "ftcli.manifest/1"}', "{", "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(StoreError, match="is damaged"):
            read_manifest(output)
    path.write_bytes(manifest.seal({"schema": "ftcli.manifest/0"}))
    with pytest.raises(StoreError, match=r"has the format 'ftcli\.manifest/0', but this version of ftcli reads 'ftcli\.manifest/1'"):
        read_manifest(output)
