"""What is stored of errors: how they spread, and the vectors that loaded models must reproduce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from predictor_service.selection.conformal import ConformalBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenVectors:
    """Inputs and answers that a loaded model must reproduce.

    Attributes:
        inputs: Shape (vectors, columns).
        outputs: Shape (vectors,), in the target's own scale.
    """

    inputs: tuple[tuple[float, ...], ...]
    outputs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerRecord:
    """A second model of the same target, for bounds.

    Attributes:
        name: Of its candidate.
        file_name: ONNX file inside the version's folder.
        file_sha256: Its hash.
        golden: Replayed before the version is served.
    """

    name: str
    file_name: str
    file_sha256: str
    golden: GoldenVectors


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRecord:
    """How far errors spread, learned from held-out residuals: widths of intervals are quantiles times it.

    Attributes:
        scores: Residuals divided by their spread.
        lowest: Smallest spread that is answered, above 0.
        highest: Largest spread that is answered.
        file_name: ONNX file inside the version's folder.
        file_sha256: Its hash.
        golden: Replayed before the version is served.
        bound: The scores of upper bounds that count networks, see `conformal.bound_offset`; None = `scores` are.
        exponent: Power of the spread that residuals were divided by.
        partner: A second model whose mean with the target's own the residuals are of; None = of the target's own alone.
        partner_weight: Of the second model in that mean, above 0 and at most 1.
        strangers_margin: What the upper bound of a wholly strange network has beyond its part of the spread, in the
            target's own scale; None = the record says nothing of strange networks.
        columns: Features that the spread and the second model see, by name; () = those of the target.
    """

    scores: ConformalBounds
    lowest: float
    highest: float
    file_name: str
    file_sha256: str
    golden: GoldenVectors
    bound: ConformalBounds | None = None
    exponent: float = 1.0
    partner: PartnerRecord | None = None
    partner_weight: float = 0.5
    columns: tuple[str, ...] = ()
    strangers_margin: float | None = None

    @property
    def file_names(self) -> tuple[str, ...]:
        """Of all of its files."""
        return (self.file_name, self.partner.file_name) if self.partner else (self.file_name,)


def golden_from_json(read: Mapping[str, Any]) -> GoldenVectors:
    """Reads golden vectors that were stored."""
    return GoldenVectors(inputs=tuple(tuple(row) for row in read["inputs"]), outputs=tuple(read["outputs"]))


def spread_to_json(spread: SpreadRecord) -> dict[str, Any]:
    """Writes a spread; defaults are left out, so that versions of before keep their names."""
    default = {
        "bound": None,
        "exponent": 1.0,
        "partner": None,
        "partner_weight": 0.5,
        "columns": (),
        "strangers_margin": None,
    }
    return {name: value for name, value in asdict(spread).items() if name not in default or value != default[name]}


def spread_from_json(read: Mapping[str, Any]) -> SpreadRecord:
    """Reads what `spread_to_json` wrote."""
    plain = {name: read[name] for name in ("lowest", "highest", "file_name", "file_sha256")}
    partner, bound = read.get("partner"), read.get("bound")
    return SpreadRecord(
        **plain,
        scores=bounds_from_json(read["scores"]),
        golden=golden_from_json(read["golden"]),
        bound=bounds_from_json(bound) if bound else None,
        exponent=float(read.get("exponent", 1.0)),
        partner_weight=float(read.get("partner_weight", 0.5)),
        columns=tuple(read.get("columns", ())),
        strangers_margin=read.get("strangers_margin"),
        partner=PartnerRecord(**{**partner, "golden": golden_from_json(partner["golden"])}) if partner else None,
    )


def bounds_from_json(read: Mapping[str, Any]) -> ConformalBounds:
    """Reads residuals that were stored."""
    return ConformalBounds(residuals=tuple(read["residuals"]), rows=read["rows"], groups=read["groups"])
