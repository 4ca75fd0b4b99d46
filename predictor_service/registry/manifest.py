"""What is stored with the models of a version: where they come from, how good they are, how far to trust them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from predictor_service.errors import ModelError
from predictor_service.registry.device_change import DeviceChange, change_from_json
from predictor_service.registry.spread_record import (
    GoldenVectors,
    SpreadRecord,
    bounds_from_json,
    golden_from_json,
    spread_from_json,
    spread_to_json,
)
from predictor_service.selection.conformal import ConformalBounds
from predictor_service.selection.domain import TrainingDomain
from predictor_service.selection.nearness import Nearness
from predictor_service.selection.operator_mix import OperatorMix

SCHEMA: Final = "cotenant.model_version/3"
LEARNING_VERSION: Final = 23
"""Raise it with every change of estimates, folds, candidates' settings or intervals: models learned by older rules are
named when the service starts, and learned anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCandidate:
    """A line of the scored table.

    Attributes:
        name: Name of the candidate.
        error_mean: Mean absolute error over held-out groups, in the target's own scale.
        error_mean_unit: The same after decoding, in the target's unit.
        refusal: Why it may not be served; empty when it may or was not tried.
    """

    name: str
    error_mean: float
    error_mean_unit: float
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NearRecord:
    """How far off jobs are answered whose graph was measured at other settings.

    Attributes:
        scores: Sizes of errors at held-out settings; each kind of job has one vote.
        nearness: Measures how near a job is.
    """

    scores: ConformalBounds
    nearness: Nearness


OF_DEVICE: Final = "device_peaks"
OF_ALL_TYPES: Final = "all_device_types"
"""Bases of step times by name: the roofline of the device type, and the model of all device types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisRecord:
    """What a target is learned relative to, where more than the target's own basis was tried.

    Attributes:
        name: The basis that is served: that of all device types unless the other one errs less beyond chance.
        errors: Mean absolute error by basis, in the target's own scale, over groups that neither the models nor the
            choice among them had seen.
    """

    name: str
    errors: Mapping[str, float]


def say_basis(basis: BasisRecord) -> str:
    """Says in one clause what was chosen and how much each way errs."""
    words = {OF_DEVICE: "the peaks of the device type", OF_ALL_TYPES: "the model of all device types"}
    others = ", ".join(
        f"{words.get(name, name)} {error:.3f}" for name, error in sorted(basis.errors.items()) if name != basis.name
    )
    chosen = words.get(basis.name, basis.name)
    return f"learned relative to {chosen}, error {basis.errors[basis.name]:.3f} on families not seen ({others})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetRecord:
    """One trained target of one device type.

    Attributes:
        target: Name with its unit.
        columns: Columns in the order of the model's input.
        winner: Chosen candidate.
        candidates: Scored table, best first.
        file_name: ONNX file inside the version's folder.
        file_sha256: Its hash.
        rows: Training rows.
        groups: Families among them.
        mape_ratio: Mean of |predicted - measured| / measured over held-out groups, each answered by the candidate that
            the others would have chosen.
        bounds: Residuals that become intervals.
        graph_bounds: For slowdowns: residuals when the jobs alone are predicted too; None elsewhere.
        domain: Region that the training rows cover.
        golden: Replayed before the model is served.
        value_low: Smallest training value in the target's own scale; answers below are raised to it.
        value_high: Largest training value in the target's own scale; answers above are lowered to it.
        spread: How far errors of different jobs spread; None = `bounds` hold for every job alike.
        near: Narrower intervals of jobs that are near to measured ones; None = all are taken for unseen jobs.
        precisions: Of the training rows of jobs alone; empty = not known.
        basis: What it was learned relative to; None = the target's own basis, and no other was tried.
        operator_mix: Tells networks of known families from others; None = too few networks to learn that.
        familiar: How far errors spread on the former; None = as on all.
        is_public: Whether others measured its rows, on machines of theirs: it comes with the program.
        share_mode: For slowdowns: how the pairs of all rows shared the device; empty = not kept, or in several ways.
    """

    target: str
    columns: tuple[str, ...]
    winner: str
    candidates: tuple[ScoredCandidate, ...]
    file_name: str
    file_sha256: str
    rows: int
    groups: int
    mape_ratio: float
    bounds: ConformalBounds
    graph_bounds: ConformalBounds | None
    domain: TrainingDomain
    golden: GoldenVectors
    value_low: float
    value_high: float
    spread: SpreadRecord | None = None
    near: NearRecord | None = None
    precisions: tuple[str, ...] = ()
    basis: BasisRecord | None = None
    operator_mix: OperatorMix | None = None
    familiar: SpreadRecord | None = None
    is_public: bool = False
    share_mode: str = ""

    @property
    def file_names(self) -> tuple[str, ...]:
        """Of all of its files."""
        spreads = (each for each in (self.spread, self.familiar) if each is not None)
        return (self.file_name, *(name for each in spreads for name in each.file_names))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Manifest:
    """A version as a whole.

    Attributes:
        version: Hash of everything below, see `name_content`; empty before it is sealed.
        seed: Seed of every regressor.
        feature_version: Version of the feature vector that the models read.
        learning_version: Version of the rules by which they were learned.
        fingerprint: Hash of the training data as a whole.
        datasets: Hash of each dataset by its name.
        targets: By device type, then by target name.
        skipped: What could not be learned and why, one sentence each.
        seen: By level of holding out, the groups that were trained on, each as `hash_group`; a later evaluation leaves
            them out.
        held_out_sha256: Hash of the file of held-out predictions, see `held_out`; empty when there is none.
        changes: By which what was measured earlier was restated, oldest first.
    """

    version: str
    seed: int
    feature_version: int
    learning_version: int
    fingerprint: str
    datasets: Mapping[str, str]
    targets: Mapping[str, Mapping[str, TargetRecord]]
    skipped: tuple[str, ...]
    seen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    held_out_sha256: str = ""
    changes: tuple[DeviceChange, ...] = ()

    def to_json(self) -> str:
        """Writes the manifest; `from_json` restores it."""
        content: dict[str, Any] = {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _PLAIN},
            "datasets": dict(self.datasets),
            "skipped": self.skipped,
            "seen": dict(self.seen),
            # Left out where there is none: versions of before keep their names.
            **({"changes": [change.as_json() for change in self.changes]} if self.changes else {}),
            "targets": {
                device: {name: _record_to_json(record) for name, record in records.items()}
                for device, records in self.targets.items()
            },
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Reads what `to_json` wrote.

        Raises:
            ModelError: Another schema, or damaged.
        """
        try:
            read = json.loads(text)
            if read["schema"] != SCHEMA:
                raise ModelError(f"the manifest has schema {read['schema']!r}", remedy="train again with this program")
            targets = {
                device: {name: _record_from_json(record) for name, record in records.items()}
                for device, records in read["targets"].items()
            }
            manifest = cls(
                **{name: read[name] for name in _PLAIN},
                datasets=read["datasets"],
                targets=targets,
                skipped=tuple(read["skipped"]),
                seen={level: tuple(names) for level, names in read["seen"].items()},
                changes=tuple(change_from_json(change) for change in read.get("changes", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"the manifest is damaged ({error})", remedy="train again") from error
        if not _is_named(text, manifest.version) and name_content(manifest) != manifest.version:
            raise ModelError(f"the content of version {manifest.version} does not match its name", remedy="train again")
        return manifest


_PLAIN: Final = ("version", "seed", "feature_version", "learning_version", "fingerprint", "held_out_sha256")


def name_content(manifest: Manifest) -> str:
    """Names a version by its content: every number in the manifest and, by their hashes, the model files.

    Equal data, seed and rules give an equal name; a manifest that was changed later does not fit its own.

    Returns:
        16 hexadecimal digits of a SHA-256.
    """
    return hashlib.sha256(replace(manifest, version="").to_json().encode()).hexdigest()[:16]


def _is_named(text: str, version: str) -> bool:
    """Whether this is, byte by byte, what a version of that name wrote: found without writing megabytes anew."""
    unnamed = text.replace(f'\n "version": "{version}"', '\n "version": ""', 1)
    return hashlib.sha256(unnamed.encode()).hexdigest()[:16] == version


def seal(manifest: Manifest) -> Manifest:
    """Returns the manifest with its name."""
    return replace(manifest, version=name_content(manifest))


def hash_group(name: str) -> str:
    """Names a group without telling what it is: 12 hexadecimal digits of a SHA-256."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _record_to_json(record: TargetRecord) -> dict[str, Any]:
    plain = (
        "target", "columns", "winner", "file_name", "file_sha256", "rows", "groups", "mape_ratio", "value_low",
        "value_high",
    )  # fmt: skip
    return {
        **{name: getattr(record, name) for name in plain},
        "candidates": [asdict(candidate) for candidate in record.candidates],
        "bounds": asdict(record.bounds),
        "graph_bounds": asdict(record.graph_bounds) if record.graph_bounds else None,
        "domain": {
            **{name: getattr(record.domain, name).tolist() for name in ("low", "high", "scale", "rows")},
            "distance_max": record.domain.distance_max,
        },
        "golden": asdict(record.golden),
        "spread": spread_to_json(record.spread) if record.spread else None,
        # Left out where there is none: versions of before keep their names.
        **({"near": _near_to_json(record.near)} if record.near else {}),
        **({"precisions": record.precisions} if record.precisions else {}),
        **({"basis": asdict(record.basis)} if record.basis else {}),
        **({"operator_mix": _mix_to_json(record.operator_mix)} if record.operator_mix else {}),
        **({"familiar": spread_to_json(record.familiar)} if record.familiar else {}),
        **({"is_public": True} if record.is_public else {}),
        **({"share_mode": record.share_mode} if record.share_mode else {}),
    }


def _near_to_json(near: NearRecord) -> dict[str, Any]:
    nearness = near.nearness
    return {
        "scores": asdict(near.scores),
        **{name: getattr(nearness, name) for name in ("kind_columns", "setting_columns")},
        **{name: getattr(nearness, name).tolist() for name in ("scale", "jobs")},
    }


def _mix_to_json(mix: OperatorMix) -> dict[str, Any]:
    graded = {"near": mix.near, "far": mix.far} if mix.near < mix.far else {}
    return {"networks": mix.networks.tolist(), "distance_max": mix.distance_max, **graded}


def _mix_from_json(read: Mapping[str, Any]) -> OperatorMix:
    reached = float(read["distance_max"])
    return OperatorMix(
        networks=np.array(read["networks"], dtype=np.float64),
        distance_max=reached,
        near=float(read.get("near", reached)),
        far=float(read.get("far", reached)),
    )


def _record_from_json(read: Mapping[str, Any]) -> TargetRecord:
    plain = (
        "target", "winner", "file_name", "file_sha256", "rows", "groups", "mape_ratio", "value_low", "value_high",
    )  # fmt: skip
    domain = read["domain"]
    return TargetRecord(
        **{name: read[name] for name in plain},
        columns=tuple(read["columns"]),
        candidates=tuple(ScoredCandidate(**candidate) for candidate in read["candidates"]),
        bounds=bounds_from_json(read["bounds"]),
        graph_bounds=bounds_from_json(read["graph_bounds"]) if read["graph_bounds"] else None,
        domain=TrainingDomain(
            **{name: np.array(domain[name], dtype=np.float64) for name in ("low", "high", "scale", "rows")},
            distance_max=domain["distance_max"],
        ),
        golden=golden_from_json(read["golden"]),
        spread=spread_from_json(read["spread"]) if read["spread"] else None,
        near=_near_from_json(read["near"]) if read.get("near") else None,
        precisions=tuple(read.get("precisions", ())),
        basis=BasisRecord(**read["basis"]) if read.get("basis") else None,
        operator_mix=_mix_from_json(read["operator_mix"]) if read.get("operator_mix") else None,
        familiar=spread_from_json(read["familiar"]) if read.get("familiar") else None,
        is_public=read.get("is_public") is True,
        share_mode=read.get("share_mode", ""),
    )


def _near_from_json(read: Mapping[str, Any]) -> NearRecord:
    nearness = Nearness(
        kind_columns=tuple(read["kind_columns"]),
        setting_columns=tuple(read["setting_columns"]),
        scale=np.array(read["scale"], dtype=np.float64),
        jobs=np.array(read["jobs"], dtype=np.float64),
    )
    return NearRecord(scores=bounds_from_json(read["scores"]), nearness=nearness)
