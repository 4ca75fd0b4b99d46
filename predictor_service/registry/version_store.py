"""Model versions on disk.

    ROOT/versions/NAME/manifest.json, card.md, *.onnx     written once, never changed
    ROOT/current                                          name of the version to serve; replaced atomically

A version is written into a temporary folder and renamed, so a crash leaves either all of it or nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from predictor_service.errors import ModelError
from predictor_service.features.job_features import FEATURE_VERSION
from predictor_service.registry.manifest import Manifest
from predictor_service.registry.onnx_model import OnnxModel, check_agreement
from predictor_service.registry.served_version import ServedTarget, ServedVersion

_MODEL_BYTES_MAX = 256 << 20


class VersionStore:
    """The versions below one folder, which is made when absent."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._versions = root / "versions"
        self._versions.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Names of all versions, sorted."""
        return sorted(path.name for path in self._versions.iterdir() if (path / "manifest.json").is_file())

    def current(self) -> str | None:
        """Name of the version to serve; None when there is none."""
        try:
            return (self._root / "current").read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None

    def add(self, manifest: Manifest, files: Mapping[str, bytes]) -> None:
        """Stores a version; one that exists already is left as it is.

        Args:
            manifest: Its description.
            files: Content by file name.
        """
        folder = self._versions / manifest.version
        if folder.exists():
            return
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=self._versions))
        try:
            for name, content in {**files, "manifest.json": manifest.to_json().encode()}.items():
                _write_durably(partial / name, content)
            partial.chmod(0o755)
            partial.rename(folder)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.exists():  # another process may have stored the same version meanwhile
                raise

    def activate(self, name: str) -> None:
        """Makes a version the one to serve, once it has proved itself.

        Raises:
            ModelError: No such version, or it fails its golden vectors.
        """
        self.load(name)
        partial = self._root / ".current.partial"
        _write_durably(partial, f"{name}\n".encode("ascii"))
        partial.replace(self._root / "current")

    def manifest(self, name: str) -> Manifest:
        """Reads a version's manifest.

        Raises:
            ModelError: No such version, or a damaged one.
        """
        path = self._versions / name / "manifest.json"
        if name not in self.names():
            raise ModelError(
                f"there is no model version {name!r}", remedy=f"known: {', '.join(self.names()) or 'none'}"
            )
        return Manifest.from_json(path.read_text(encoding="utf-8"))

    def card(self, name: str) -> str:
        """Reads a version's model card."""
        return (self._versions / name / "card.md").read_text(encoding="utf-8")

    def load(self, name: str) -> ServedVersion:
        """Loads a version and replays its golden vectors.

        Raises:
            ModelError: Missing, damaged, of another feature version, or it answers differently than when trained.
        """
        manifest = self.manifest(name)
        if manifest.feature_version != FEATURE_VERSION:
            raise ModelError(
                f"version {name} reads features {manifest.feature_version}, this program writes {FEATURE_VERSION}",
                remedy="train again",
            )
        devices = {
            device: {target: self._load_target(manifest, device, target) for target in records}
            for device, records in manifest.targets.items()
        }
        return ServedVersion(manifest=manifest, devices=devices)

    def _load_target(self, manifest: Manifest, device: str, target: str) -> ServedTarget:
        record = manifest.targets[device][target]
        path = self._versions / manifest.version / Path(record.file_name).name
        try:
            content = path.read_bytes() if path.stat().st_size <= _MODEL_BYTES_MAX else b""
        except OSError as error:
            raise ModelError(f"{path.name} cannot be read ({error})", remedy="train again") from error
        if hashlib.sha256(content).hexdigest() != record.file_sha256:
            raise ModelError(f"{path.name} of version {manifest.version} is damaged", remedy="train again")
        model = OnnxModel(content)
        check_agreement(model, record.golden, f"{target} for {device}")
        return ServedTarget(record, model)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
