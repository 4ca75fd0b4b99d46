"""The page that a person reads before trusting a version; written by the program from the manifest alone."""

from __future__ import annotations

from collections.abc import Iterator

from predictor_service.registry.manifest import Manifest, NearRecord, TargetRecord, say_basis
from predictor_service.registry.spread_record import SpreadRecord
from predictor_service.selection.conformal import SAFETY_FACTOR, ConformalBounds, bound_offset
from predictor_service.selection.operator_mix import OperatorMix

_CLEAR_LEAD = 0.05
METHOD = """\
Every candidate was fitted once per fold; a fold leaves out whole model families, never random rows. The candidate with
the smallest mean absolute error in the target's own scale (logarithm of measured over counted for times and memory)
was refitted on all rows; the model of all device types as it is stays unless another one errs less by more than the
standard error over families. The error named first is nested: every fold is answered by the candidate that the other
folds would have chosen. The errors of the table are those that candidates were chosen by. `cotenant evaluate --model
fresh` judges the same choice on rows that took no part in it.

Intervals are grouped cross-conformal: residuals of held-out families. Bounds above 95 % count families instead of rows.
"""


def write_card(manifest: Manifest) -> str:
    """Returns the model card as Markdown."""
    return "\n".join(_lines(manifest)) + "\n"


def _lines(manifest: Manifest) -> Iterator[str]:
    yield f"# Model version {manifest.version}"
    yield ""
    yield f"Datasets: {', '.join(manifest.datasets)} (fingerprint {manifest.fingerprint[:16]}), seed {manifest.seed}, "
    yield f"features version {manifest.feature_version}, learning version {manifest.learning_version}."
    yield ""
    yield METHOD
    if manifest.changes:
        yield "What was measured before a device changed is restated as it would be measured since:"
        yield ""
        yield from (f"- {change.say()}" for change in manifest.changes)
        yield ""
    for device, records in manifest.targets.items():
        for record in records.values():
            yield from _target_lines(device, record)
    if manifest.skipped:
        yield "## Not learned"
        yield ""
        yield from (f"- {reason}" for reason in manifest.skipped)


def _target_lines(device: str, record: TargetRecord) -> Iterator[str]:
    yield f"## {record.target} on {device}"
    yield ""
    yield f"{record.rows} rows of {record.groups} families; winner **{record.winner}**, "
    yield f"mean |predicted - measured| / measured {record.mape_ratio:.1%} on families not seen."
    yield _why_it_won(record)
    if record.basis is not None:
        sentence = say_basis(record.basis)
        yield f"{sentence[:1].upper()}{sentence[1:]}; errors are logarithms of measured over predicted."
    yield _bounds_line("Interval", record.bounds)
    if record.spread is not None:
        yield _spread_line(record.spread)
    if record.near is not None:
        yield _near_line(record.near)
    if record.operator_mix is not None:
        yield _familiar_line(record, record.operator_mix)
    if record.graph_bounds is not None:
        yield _bounds_line("With the jobs alone predicted as well: interval", record.graph_bounds)
    if record.share_mode:
        yield f"All pairs shared the device by {record.share_mode}; asked about another way it is out of domain."
    yield ""
    yield "| candidate | error, own scale | error, unit of the target | |"
    yield "|---|---|---|---|"
    for candidate in record.candidates:
        note = candidate.refusal or ("served" if candidate.name == record.winner else "")
        yield f"| {candidate.name} | {candidate.error_mean:.4f} | {candidate.error_mean_unit:.5g} | {note} |"
    yield ""


def _why_it_won(record: TargetRecord) -> str:
    """One sentence from the scored table: against the runner-up and rescaled physics, and which may not be served."""
    table = list(record.candidates)
    place = next(index for index, line in enumerate(table) if line.name == record.winner)
    refused, by_chance = ([line for line in table[:place] if bool(line.refusal) is one] for one in (True, False))
    smallest = f"nothing is better beyond chance than {table[place].name}, error" if by_chance else "smallest error"
    sentences = [f"Why: {smallest} in its own scale, {table[place].error_mean:.4f}"]
    if place + 1 < len(table):
        runner_up = table[place + 1]
        lead = 1 - table[place].error_mean / runner_up.error_mean if runner_up.error_mean > 0 else 0.0
        near = "; the lead is within what another split may turn" if lead < _CLEAR_LEAD else ""
        sentences.append(f"{lead:.1%} below {runner_up.name}{near}")
    analytical_model = next((line for line in table if line.name == "constant_correction"), None)
    if analytical_model is not None and analytical_model.name != record.winner and analytical_model.error_mean > 0:
        sentences.append(f"{1 - table[place].error_mean / analytical_model.error_mean:.1%} below rescaled physics")
    sentences += [f"{line.name} was better but {line.refusal}" for line in refused]
    return ", ".join(sentences) + "."


def _bounds_line(title: str, bounds: ConformalBounds) -> str:
    notes = [
        f"too few for {confidence:.0%}: {stand_in}"
        for confidence, stand_in in ((0.9, "Student's t"), (0.99, f"the largest residual times {SAFETY_FACTOR:g}"))
        if not bounds.is_supported(confidence)
    ]
    widths = f"{title} of 90 %: +- {bounds.half_width(0.9):.3f} in its own scale; 99 % bound + "
    voters = "" if bounds.rows == bounds.groups else f"{bounds.rows} residuals, "
    counts = f"{bounds.upper_offset(0.99):.3f} ({voters}{bounds.groups} families"
    return widths + counts + "".join(f"; {note}" for note in notes) + ")."


def _near_line(near: NearRecord) -> str:
    width = f"Of graphs that were measured at other settings: +- {near.scores.half_width(0.9):.3f} or less"
    return f"{width} ({near.scores.groups} graphs), growing with the distance to them."


def _familiar_line(record: TargetRecord, mix: OperatorMix) -> str:
    count = (
        f"Of a family that is not known counts what is made of other operators than the {len(mix.networks)} networks"
    )
    told = f"{count} (distance above {mix.distance_max:.3f}, beyond which a tenth of networks of known families are)"
    if record.spread is not None and record.spread.bound is not None:
        told += f", with a 99 % bound of {_reach_of(record.spread)} with their families"
    if record.familiar is None:
        return f"{told}."
    told += f"; of all others the 99 % bound is {_reach_of(record.familiar)}"
    margin = record.familiar.strangers_margin
    return f"{told}." if margin is None else f"{told}, and up to {margin:g} more for networks of other operators."


def _reach_of(spread: SpreadRecord) -> str:
    narrow, wide = (bound_offset(spread.scores, spread.bound, 0.99) * edge for edge in (spread.lowest, spread.highest))
    return f"+ {narrow:.3f} to + {wide:.3f}, by {(spread.bound or spread.scores).groups} networks held out"


def _spread_line(spread: SpreadRecord) -> str:
    narrow, wide = (spread.scores.half_width(0.9) * edge for edge in (spread.lowest, spread.highest))
    return f"They follow what was learned of the size of errors: 90 % from +- {narrow:.3f} to +- {wide:.3f} by job."
