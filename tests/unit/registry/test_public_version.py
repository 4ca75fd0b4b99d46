"""The models that come with the program: packed and read whole, or refused in one sentence."""

from __future__ import annotations

import dataclasses
import io
import lzma
import tarfile
from pathlib import Path

import pytest

from predictor_service.errors import ModelError
from predictor_service.registry import public_version
from predictor_service.registry.manifest import seal
from predictor_service.registry.public_version import (
    PackedVersion,
    pack_version,
    read_public_version,
    unpack_version,
)
from tests.support.public_package import packed_version


def test_what_is_unpacked_is_what_was_packed() -> None:
    packed = packed_version()
    again = unpack_version(pack_version(packed))
    assert again.manifest.version == packed.manifest.version
    assert again.files == packed.files
    assert again.held_out == packed.held_out


def test_equal_versions_are_packed_into_equal_bytes() -> None:
    packed = packed_version()
    turned = PackedVersion(manifest=packed.manifest, files=dict(reversed(list(packed.files.items()))))
    assert pack_version(packed) == pack_version(turned)


def test_a_package_of_other_rules_is_passed_over(tmp_path: Path) -> None:
    packed = packed_version()
    unnamed = dataclasses.replace(packed.manifest, version="")
    for changed in (dataclasses.replace(unnamed, learning_version=1), dataclasses.replace(unnamed, feature_version=1)):
        older = seal(changed)
        path = tmp_path / "older"
        path.write_bytes(pack_version(PackedVersion(manifest=older, files=packed.files)))
        assert read_public_version(path) is None
    assert read_public_version(tmp_path / "absent") is None


def archive_of(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    unpacked = io.BytesIO()
    with tarfile.open(fileobj=unpacked, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
        archive.addfile(entry, io.BytesIO(b""))
    return lzma.compress(unpacked.getvalue())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        lzma.compress(b"no tar"),
        archive_of("../manifest.json"),
        archive_of("link", tarfile.SYMTYPE),
        archive_of("folder", tarfile.DIRTYPE),
        archive_of("card.md"),
    ],
    ids=["empty", "not compressed", "no archive", "another folder", "a link", "a folder", "no manifest"],
)
def test_a_damaged_package_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "package").write_bytes(content)
    with pytest.raises(ModelError, match=r"public_models\.tar\.xz is damaged"):
        read_public_version(tmp_path / "package")


def test_a_package_that_was_cut_off_or_is_far_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pack_version(packed_version())
    with pytest.raises(ModelError, match="cut off"):
        unpack_version(content[:-100])
    monkeypatch.setattr(public_version, "_UNPACKED_BYTES_MAX", 1000)
    with pytest.raises(ModelError, match="too large"):
        unpack_version(content)
