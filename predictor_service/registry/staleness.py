"""Why a version that is served should be learned anew although it works."""

from __future__ import annotations

from collections.abc import Mapping

from predictor_service.registry.manifest import LEARNING_VERSION, Manifest


def learned_by_older_rules(manifest: Manifest) -> str:
    """One sentence when this program learns by other rules than the version was learned by; else empty."""
    if manifest.learning_version == LEARNING_VERSION:
        return ""
    return f"learned by rules {manifest.learning_version}, this program learns by rules {LEARNING_VERSION}"


def learned_from_other_data(manifest: Manifest, hashes: Mapping[str, str]) -> str:
    """One sentence when data sets were added or changed since the version was trained; else empty.

    Args:
        manifest: Of the version.
        hashes: Hash of every data set that is there now, by name.
    """
    added = sorted(name for name in hashes if name not in manifest.datasets)
    changed = sorted(name for name, sha256 in hashes.items() if manifest.datasets.get(name, sha256) != sha256)
    parts = [f"{', '.join(names)} {word}" for names, word in ((added, "added"), (changed, "changed")) if names]
    return f"data sets since it was trained: {'; '.join(parts)}" if parts else ""
