"""Gavel: training steps per second of PyTorch jobs, alone and two on one GPU (K80, V100; P100 where published).

Three campaigns months apart stay apart: the same pair differs between them by more than most models err. Rates become
milliseconds per step; slowdown_ratio = solo rate / packed rate - 1.

Faults of the set, and what happens to them:

- A pair that did not run together has no rate: status failed, did_not_run_together.
- The 2020 file caps packed rates at the solo rate: rows at exactly the cap are kept and flagged rate_capped_at_solo.
- 2019 `Recommendation` counts another unit of step: flagged step_unit_differs; ratios within the campaign stand.
- A3C and CycleGAN have no batch: 1, flagged batch_not_published.
- A job that only appears co-located has no solo rate: a failed row, solo_not_published, keeps its facts at hand.
- Rates on one GPU were published for both placements of larger jobs; placement means nothing on one GPU, and pairs
  refer to the consolidated one, so the other one is rejected, flagged placement_of_one_device.

Optimizers are those of the scripts that were measured; all of them train in 32 bits.
Source: github stanford-futuredata/gavel, workloads/pytorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.profile_schema import PairRow, SoloRow
from predictor_service.importers.imported_set import UNSTATED, ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.published_table import PublishedRow, read_table
from predictor_service.importers.zoo_features import ZooFeatures

_DEVICES: Final = {"K80": "Tesla K80", "P100": "Tesla P100-PCIE-16GB", "V100": "Tesla V100-SXM2-16GB"}
_FAMILIES: Final = {
    "ResNet-18": "resnet",
    "ResNet-50": "resnet",
    "Transformer": "transformer",
    "LM": "lstm",
    "Recommendation": "autoencoder",
    "A3C": "actor_critic",
    "CycleGAN": "gan",
}
_ARCHITECTURES: Final = {
    "ResNet-18": "resnet18_cifar",
    "ResNet-50": "resnet50",
    "Transformer": "transformer_translation",
    "LM": "lstm_wikitext",
    "Recommendation": "rating_autoencoder",
    "A3C": "a3c",
    "CycleGAN": "cyclegan",
}
_OPTIMIZERS: Final = {
    "ResNet-18": "momentum",
    "ResNet-50": "momentum",
    "Transformer": "adam",
    "LM": "sgd",
    "Recommendation": "adam",
}
_INPUT_SHAPES: Final = {"ResNet-18": "3x32x32", "ResNet-50": "3x224x224"}
_SOLO_COLUMNS: Final = "campaign gpu consolidated model batch_size n_gpus steps_per_s ran"
_PAIR_COLUMNS: Final = (
    "campaign gpu victim_model victim_batch other_model other_batch victim_solo_steps_per_s victim_packed_steps_per_s "
    "other_packed_steps_per_s victim_norm victim_slowdown ran_together clipped"
)
# Rates are published with six digits.
_RATE_TOLERANCE: Final = 1e-4


def import_gavel(folder: Path) -> ImportedSet:
    """Reads solo.csv and pairs.csv.

    Raises:
        TrainingDataError: A file is not what the set's README describes; names file, line and column.
    """
    solo = [_solo(row) for row in read_table(folder, "solo.csv", _SOLO_COLUMNS)]
    known = {(row.campaign, row.device, row.job_key) for row in solo}
    pairs = []
    for row in read_table(folder, "pairs.csv", _PAIR_COLUMNS):
        pairs.append(_pair(row))
        for side in ("victim", "other"):
            place = (row.text("campaign"), _device(row), _key_of_side(row, side))
            if place not in known:
                known.add(place)
                solo.append(_unpublished_solo(row, side))
    return ImportedSet(solo=solo, pairs=pairs)


def _solo(row: PublishedRow) -> SoloRow:
    model, gpus = _model(row, "model"), row.integer("n_gpus", minimum=1)
    consolidated, ran = row.flag("consolidated"), row.flag("ran")
    per_device, flags = _batch(row, "batch_size")
    status = "ok" if ran else "failed"
    if gpus == 1 and not consolidated:
        status, flags = "rejected", [*flags, "placement_of_one_device"]
    if model == "Recommendation" and row.text("campaign").startswith("2019"):
        flags.append("step_unit_differs")
    return solo_row(
        run_id=f"gavel-solo-{row.line}",
        campaign=row.text("campaign"),
        device=_device(row),
        job_key=_key(model, per_device, gpus, "one_server" if consolidated else "spread"),
        architecture=model,
        family=_FAMILIES[model],
        batch=per_device * gpus,
        sub_batch=per_device,
        input_shape=_INPUT_SHAPES.get(model),
        optimizer=_OPTIMIZERS.get(model, UNSTATED),
        gpus=gpus,
        nodes=1 if consolidated else gpus,
        step_ms_mean=1e3 / row.number("steps_per_s", above=0) if ran else None,
        status=status,
        quality_flags=tuple(flags),
        features_json=_features(model, row.optional_number("batch_size")),
    )


def _pair(row: PublishedRow) -> PairRow:
    ran = row.flag("ran_together")
    solo_ms = 1e3 / row.number("victim_solo_steps_per_s", above=0)
    packed_ms = 1e3 / row.number("victim_packed_steps_per_s", above=0) if ran else None
    if packed_ms is not None:
        published = row.number("victim_slowdown", above=0)
        if abs(packed_ms / solo_ms / published - 1) > _RATE_TOLERANCE:
            raise row.refusal("victim_slowdown", f"{published:g} is not solo / packed rate = {packed_ms / solo_ms:g}")
    flags = ["rate_capped_at_solo"] if row.flag("clipped") else []
    return PairRow(
        run_id=f"gavel-pair-{row.line}",
        campaign=row.text("campaign"),
        device=_device(row),
        share_mode="time_slicing",
        victim_job_key=_key_of_side(row, "victim"),
        other_job_keys=(_key_of_side(row, "other"),),
        victim_step_ms_mean=packed_ms,
        victim_solo_step_ms_mean=solo_ms,
        slowdown_ratio=None if packed_ms is None else packed_ms / solo_ms - 1,
        repeat=0,
        status="ok" if ran else "failed",
        quality_flags=tuple(flags if ran else [*flags, "did_not_run_together"]),
    )


def _unpublished_solo(row: PublishedRow, side: str) -> SoloRow:
    model = _model(row, f"{side}_model")
    batch, flags = _batch(row, f"{side}_batch")
    return solo_row(
        run_id=f"gavel-{side}-{row.line}",
        campaign=row.text("campaign"),
        device=_device(row),
        job_key=_key_of_side(row, side),
        architecture=model,
        family=_FAMILIES[model],
        batch=batch,
        input_shape=_INPUT_SHAPES.get(model),
        status="failed",
        quality_flags=(*flags, "solo_not_published"),
        features_json=_features(model, row.optional_number(f"{side}_batch")),
    )


def _features(model: str, batch: float | None) -> str | None:
    """The models are those that the set names; their graphs come from our own zoo."""
    return features_json({"model": model, "batch_size": batch}, ZooFeatures.load().of(_ARCHITECTURES[model]))


def _key_of_side(row: PublishedRow, side: str) -> str:
    return _key(_model(row, f"{side}_model"), _batch(row, f"{side}_batch")[0], 1, "one_server")


def _key(model: str, batch: int, gpus: int, placement: str) -> str:
    return job_key("gavel", model, batch, gpus=gpus, placement=placement)


def _model(row: PublishedRow, column: str) -> str:
    return row.choice(column, tuple(_FAMILIES))


def _device(row: PublishedRow) -> str:
    return _DEVICES[row.choice("gpu", tuple(_DEVICES))]


def _batch(row: PublishedRow, column: str) -> tuple[int, list[str]]:
    if not row.cells[column]:
        return 1, ["batch_not_published"]
    return row.integer(column, minimum=1), []
