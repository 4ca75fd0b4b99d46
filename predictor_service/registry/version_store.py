"""Model versions on disk.

    ROOT/versions/NAME/manifest.json, card.md, held_out.json, *.onnx     written once, never changed
    ROOT/current                                          name of the version to serve; replaced atomically

A version is written into a temporary folder and renamed, so a crash leaves either all of it or nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from cotenant.folder_sync import sync_folder
from cotenant.system_clock import now_ms
from predictor_service.errors import ModelError, UnknownVersionError
from predictor_service.features.devices import find_device_type
from predictor_service.features.feature_meaning import means_the_same
from predictor_service.features.job_features import FEATURE_VERSION
from predictor_service.registry.held_out import HELD_OUT_FILE, HeldOut, held_out_from_json
from predictor_service.registry.manifest import Manifest
from predictor_service.registry.onnx_model import OnnxModel, check_agreement
from predictor_service.registry.served_version import ServedTarget, ServedVersion
from predictor_service.registry.spread_record import GoldenVectors

_MODEL_BYTES_MAX = 256 << 20
_LEAVING = ".leaving-"
_PARTIAL = ".partial-"
_WRITING_S = 3_600.0


class VersionStore:
    """The versions below one folder, which is made when absent."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._versions = root / "versions"
        self._versions.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Names of all versions, sorted."""
        folders = (path for path in self._versions.iterdir() if not path.name.startswith("."))  # one that is written
        return sorted(path.name for path in folders if (path / "manifest.json").is_file())

    def current(self) -> str | None:
        """Name of the version to serve; None when there is none."""
        try:
            return (self._root / "current").read_text(encoding="ascii", errors="replace").strip() or None
        except FileNotFoundError:
            return None

    def add(self, manifest: Manifest, files: Mapping[str, bytes]) -> None:
        """Stores a version; one that exists already is left as it is, and replaced where a file of it is damaged.

        Args:
            manifest: Its description.
            files: Content by file name.
        """
        folder = self._versions / manifest.version
        contents = {**files, "manifest.json": manifest.to_json().encode()}
        if _holds(folder, contents):
            return
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self._versions))
        try:
            for name, content in contents.items():
                _write_durably(partial / name, content)
            partial.chmod(0o755)
            self._put(partial, folder)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            if not _holds(folder, contents):  # another process may have stored the same version meanwhile
                raise

    def forget_oldest(self, versions_max: int, *, keep: Collection[str]) -> None:
        """Deletes the versions that were stored first, beyond a number, but none of `keep` nor the served one.

        Raises:
            OSError: The disk does not let them be deleted.
        """
        for left in self._left_over():
            shutil.rmtree(left)
        kept = {*keep, self.current()}
        stored = sorted(self.names(), key=lambda name: ((self._versions / name).stat().st_mtime_ns, name))
        for name in stored[: max(len(stored) - versions_max, 0)]:
            if name not in kept:
                leaving = self._versions / f"{_LEAVING}{name}"
                (self._versions / name).rename(leaving)
                shutil.rmtree(leaving)

    def _put(self, partial: Path, folder: Path) -> None:
        """Puts a whole folder where a damaged one may be."""
        if folder.exists():
            damaged = self._versions / f"{_LEAVING}{partial.name}"
            folder.rename(damaged)
            partial.rename(folder)
            shutil.rmtree(damaged, ignore_errors=True)
        else:
            partial.rename(folder)
        sync_folder(self._versions)

    def _left_over(self) -> list[Path]:
        """What a process that was killed left behind; one that writes does so for less than `_WRITING_S`."""
        written_before = now_ms() / 1_000 - _WRITING_S
        partial = [path for path in self._versions.glob(f"{_PARTIAL}*") if path.stat().st_mtime < written_before]
        return [*self._versions.glob(f"{_LEAVING}*"), *partial]

    def activate(self, name: str) -> None:
        """Makes a version the one to serve, once it has proved itself.

        Raises:
            ModelError: No such version, or it fails its golden vectors.
        """
        self.load(name)
        partial = self._root / ".current.partial"
        _write_durably(partial, f"{name}\n".encode("ascii"))
        partial.replace(self._root / "current")
        sync_folder(self._root)

    def manifest(self, name: str) -> Manifest:
        """Reads a version's manifest.

        Raises:
            ModelError: No such version, or a damaged one.
        """
        path = self.folder(name) / "manifest.json"
        try:
            return Manifest.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, AttributeError, RecursionError) as error:
            raise ModelError(f"the manifest of version {name} is damaged ({error})", remedy="train again") from error

    def find(self, prefix: str) -> str:
        """Returns the name of the only version that begins so.

        Raises:
            UnknownVersionError: There is none, or several.
        """
        matches = [name for name in self.names() if name.startswith(prefix)] if prefix else []
        if len(matches) != 1:
            raise UnknownVersionError(
                f"{len(matches)} model versions begin with {prefix!r}" if matches else f"no model version {prefix!r}",
                remedy=f"known: {', '.join(matches or self.names()) or 'none; train one with `cotenant retrain`'}",
            )
        return matches[0]

    def card(self, name: str) -> str:
        """Reads a version's model card.

        Raises:
            ModelError: No such version.
        """
        return (self.folder(name) / "card.md").read_text(encoding="utf-8")

    def held_out(self, name: str) -> HeldOut:
        """Reads what a version predicted of groups that it was not shown; empty when it was stored without.

        Raises:
            ModelError: No such version, or a damaged one.
        """
        manifest = self.manifest(name)
        if not manifest.held_out_sha256:
            return {}
        path = self.folder(name) / HELD_OUT_FILE
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != manifest.held_out_sha256:
            raise ModelError(f"{HELD_OUT_FILE} of version {name} is damaged", remedy="train again")
        return held_out_from_json(content.decode())

    def load(self, name: str) -> ServedVersion:
        """Loads a version and replays its golden vectors.

        Raises:
            ModelError: Missing, damaged, of another feature version, or it answers differently than when trained.
                Of an older version that some devices' vectors outlived, those devices alone are loaded.
        """
        manifest = self.manifest(name)
        readable = [
            device for device in manifest.targets if means_the_same(manifest.feature_version, find_device_type(device))
        ]
        if manifest.feature_version != FEATURE_VERSION and not readable:
            raise ModelError(
                f"version {name} reads features {manifest.feature_version}, this program writes {FEATURE_VERSION}",
                remedy="train again",
            )
        devices = {
            device: {target: self._load_target(manifest, device, target) for target in manifest.targets[device]}
            for device in readable
        }
        return ServedVersion(manifest=manifest, devices=devices)

    def folder(self, name: str) -> Path:
        """Where the files of a version lie; they never change.

        Raises:
            ModelError: No such version.
        """
        if name not in self.names():
            raise ModelError(
                f"there is no model version {name!r}", remedy=f"known: {', '.join(self.names()) or 'none'}"
            )
        return self._versions / name

    def _load_target(self, manifest: Manifest, device: str, target: str) -> ServedTarget:
        record, what = manifest.targets[device][target], f"{target} for {device}"
        model = self._load_model(manifest, record.file_name, record.file_sha256, record.golden, what)
        partner = record.familiar.partner if record.familiar else None
        others = [
            self._load_model(manifest, each.file_name, each.file_sha256, each.golden, f"a bound of {what}")
            if each
            else None
            for each in (record.spread, record.familiar, partner)
        ]
        return ServedTarget(record, model, *others)

    def _load_model(
        self, manifest: Manifest, file_name: str, file_sha256: str, golden: GoldenVectors, what: str
    ) -> OnnxModel:
        path = self._versions / manifest.version / Path(file_name).name
        try:
            content = path.read_bytes() if path.stat().st_size <= _MODEL_BYTES_MAX else b""
        except OSError as error:
            raise ModelError(f"{path.name} cannot be read ({error})", remedy="train again") from error
        if hashlib.sha256(content).hexdigest() != file_sha256:
            raise ModelError(f"{path.name} of version {manifest.version} is damaged", remedy="train again")
        model = OnnxModel(content)
        check_agreement(model, golden, what)
        return model


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _holds(folder: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether a folder has these files with this content."""
    try:
        return all((folder / name).read_bytes() == content for name, content in contents.items())
    except OSError:
        return False
