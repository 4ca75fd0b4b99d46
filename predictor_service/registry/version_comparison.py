"""What differs between two versions, from their manifests alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from predictor_service.registry.manifest import Manifest, TargetRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs.

    Attributes:
        what: E.g. "cpu-standin, step_ms: winner".
        before: As text; empty when it is new.
        after: As text; empty when it is gone.
    """

    what: str
    before: str
    after: str


def compare_versions(before: Manifest, after: Manifest) -> list[Difference]:
    """Lists what differs, versions as a whole first, then target by target."""
    return [item for item in _differences(before, after) if item.before != item.after]


def _differences(before: Manifest, after: Manifest) -> Iterator[Difference]:
    for name in ("seed", "feature_version", "learning_version"):
        yield Difference(what=name, before=str(getattr(before, name)), after=str(getattr(after, name)))
    for name in sorted({*before.datasets, *after.datasets}):
        hashes = [manifest.datasets.get(name, "")[:16] for manifest in (before, after)]
        yield Difference(what=f"dataset {name}", before=hashes[0], after=hashes[1])
    for change in sorted({*before.changes, *after.changes}):
        texts = [change.say() if change in manifest.changes else "" for manifest in (before, after)]
        yield Difference(what="device changed", before=texts[0], after=texts[1])
    for device in sorted({*before.targets, *after.targets}):
        old, new = before.targets.get(device, {}), after.targets.get(device, {})
        for target in sorted({*old, *new}):
            figures = [_figures(records.get(target)) for records in (old, new)]
            for figure in figures[0] or figures[1]:
                yield Difference(
                    what=f"{device}, {target}: {figure}",
                    before=figures[0].get(figure, ""),
                    after=figures[1].get(figure, ""),
                )


def _figures(record: TargetRecord | None) -> dict[str, str]:
    if record is None:
        return {}
    return {
        "winner": record.winner,
        "rows": str(record.rows),
        "families": str(record.groups),
        "columns": str(len(record.columns)),
        "error on families not seen": f"{record.mape_ratio:.2%}",
        "half width of the 90 % interval": f"{record.bounds.half_width(0.9):.4f}",
        "99 % bound above the prediction": f"{record.bounds.upper_offset(0.99):.4f}",
    }
