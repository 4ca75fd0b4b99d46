"""The version that comes with the program: what public data sets teach, next to the stand-in's models.

`python -m predictor_service train-public-models` made `public_models.tar.xz` from the data sets that come with the
program; learning them takes minutes, unpacking seconds. A program that learns by other rules, or reads other features,
than the file was made by does not use it: a first start then learns from its data sets as if there were none.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from predictor_service.errors import ModelError
from predictor_service.features.job_features import FEATURE_VERSION
from predictor_service.registry.held_out import HELD_OUT_FILE, HeldOut, held_out_from_json
from predictor_service.registry.manifest import LEARNING_VERSION, Manifest

PUBLIC_MODELS: Final = Path(__file__).parent / "public_models.tar.xz"
TEACHING_SETS: Final = ("gavel", "gpumemnet", "pollux", "salus", "timm_bench", "torchvision_bench")
"""Data sets of others that teach it."""
MANIFEST_FILE: Final = "manifest.json"
_UNPACKED_BYTES_MAX: Final = 512 << 20
_REMEDY: Final = "install the program again, or make the file again with train-public-models"


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedVersion:
    """A version as it was packed.

    Attributes:
        manifest: Sealed.
        files: Content by file name, the manifest left out, for `VersionStore.add`.
    """

    manifest: Manifest
    files: Mapping[str, bytes]

    @cached_property
    def held_out(self) -> HeldOut:
        """What it predicted of rows whose groups it was not shown.

        Raises:
            ModelError: They are damaged.
        """
        return held_out_from_json(self.files[HELD_OUT_FILE].decode())


def pack_version(version: PackedVersion) -> bytes:
    """Packs a version; equal versions have equal bytes wherever the compressor is the same."""
    unpacked = io.BytesIO()
    contents = {**version.files, MANIFEST_FILE: version.manifest.to_json().encode()}
    with tarfile.open(fileobj=unpacked, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(contents.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return lzma.compress(unpacked.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def unpack_version(packed: bytes) -> PackedVersion:
    """Reads what `pack_version` wrote; nothing is written to disk.

    Raises:
        ModelError: It is damaged.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(_decompress(packed))) as archive:
            files = {entry.name: _read(archive, entry) for entry in archive.getmembers()}
        manifest = Manifest.from_json(files.pop(MANIFEST_FILE).decode())
    except (lzma.LZMAError, tarfile.TarError, KeyError, UnicodeDecodeError) as error:
        raise ModelError(f"{PUBLIC_MODELS.name} is damaged ({error})", remedy=_REMEDY) from error
    return PackedVersion(manifest=manifest, files=files)


def _decompress(packed: bytes) -> bytes:
    decompressor = lzma.LZMADecompressor()
    content = decompressor.decompress(packed, _UNPACKED_BYTES_MAX)
    if not decompressor.eof:
        raise ModelError(f"{PUBLIC_MODELS.name} is damaged (cut off, or too large)", remedy=_REMEDY)
    return content


def _read(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    if file is None or Path(entry.name).name != entry.name:
        raise ModelError(f"{PUBLIC_MODELS.name} is damaged (it holds {entry.name!r})", remedy=_REMEDY)
    return file.read()


def read_public_version(path: Path = PUBLIC_MODELS) -> PackedVersion | None:
    """Reads the version that comes with the program.

    Args:
        path: Of the file.

    Returns:
        None where there is none, or where this program learns by other rules.

    Raises:
        ModelError: It is damaged.
    """
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error})", remedy=_REMEDY) from error
    version = unpack_version(packed)
    return version if learns_alike(version.manifest) else None


def learns_alike(manifest: Manifest) -> bool:
    """Whether this program reads the same features and learns by the same rules as a version was made by."""
    return (manifest.feature_version, manifest.learning_version) == (FEATURE_VERSION, LEARNING_VERSION)
