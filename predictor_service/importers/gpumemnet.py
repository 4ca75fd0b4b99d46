"""GPUMemNet: memory and utilization of generated networks and of timm models, each alone on an A100 with 40 GB.

One folder, one campaign per table: cnn, mlp, timm, fc_mnist (`horus_formula_mlp.csv`) and real_cnn. Memory is what the
process held including the CUDA context, so memory_context_bytes is 0 and rows say memory_includes_context.
gpu_util_pct becomes utilization_ratio, smact sm_activity_ratio. Measured columns without a place in the schema (gract,
smocc, fp32a) are left out: they are results of the run, not features. `layers` and `config` are read, not copied.

Faults of the set, and what happens to them:

- status OOM_CRASH: out_of_memory; its memory is where the device ended, flagged memory_censored.
- SUCCESSFUL with at most 1,000 MiB: rejected, memory_implausible, because less than a context was seen.
- Layers are an empty list in 65 cnn rows, which then have no features of ours: flagged layers_not_published. A layer
  that our arithmetic cannot explain, of which the published rows have none, costs the features and not the row: flagged
  layers_not_understood.
- timm rows that are not clean: rejected, near_device_memory or less_than_smaller_batch.
- Utilization is empty in half of the cnn rows: null.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cotenant.profile_schema import SoloRow
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.graphs.batch_figures import features_at_batch
from predictor_service.importers.imported_set import MEBIBYTE, Features, ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.layer_list import (
    UnexplainedLayerError,
    count_work,
    graph_features,
    parse_layers,
    step_features,
)
from predictor_service.importers.layer_operators import reserved_bytes
from predictor_service.importers.model_families import model_family
from predictor_service.importers.published_table import PublishedRow, has_table, read_table
from predictor_service.importers.timm_features import TimmFeatures

_DEVICE: Final = "NVIDIA A100-SXM4-40GB"
_PLAUSIBLE_MEMORY_MIB: Final = 1000
_ADAM_SLOTS: Final = 2
_MEASURED: Final = "max_gpu_mem_mib gpu_util_pct gract smact smocc fp32a"
_CNN_FEATURES: Final = (
    "depth activation activations params batch_size n_conv2d n_batchnorm2d n_dropout n_avgpool n_linear arch "
    "input_channels num_classes base_filters input_size"
)
_MLP_FEATURES: Final = (
    "set depth activation activations params batch_size arch input_size output_size n_batchnorm n_dropout"
)
_TEXTS: Final = frozenset({"set", "activation", "arch", "model"})
_TIMM_FEATURES: Final = "batch_size faketensor_fwd_mib faketensor_bwd_mib faketensor_step_mib"
_TIMM_FLAGS: Final = {"flag_oom": "near_device_memory", "flag_nonmonotone": "less_than_smaller_batch"}


def import_gpumemnet(folder: Path) -> ImportedSet:
    """Reads the tables that the folder has; cnn and mlp must be there.

    Raises:
        TrainingDataError: A file is not what the set's README describes; names file, line and column.
    """
    rows = [_cnn(row) for row in read_table(folder, "cnn.csv", f"config layers status {_MEASURED} {_CNN_FEATURES}")]
    rows += [_mlp(row) for row in read_table(folder, "mlp.csv", f"config layers {_MEASURED} {_MLP_FEATURES}")]
    if has_table(folder, "timm_memory.csv"):
        columns = f"model max_gpu_mem_mib flag_oom flag_nonmonotone clean {_TIMM_FEATURES}"
        features = TimmFeatures.load()
        rows += [_timm(row, features) for row in read_table(folder, "timm_memory.csv", columns)]
    if has_table(folder, "horus_formula_mlp.csv"):
        columns = "max_gpu_mem_mib neurons layers model horus_formula_raw horus_formula_mb"
        rows += [_fc_mnist(row) for row in read_table(folder, "horus_formula_mlp.csv", columns)]
    if has_table(folder, "real_cnn_memory.csv"):
        columns = "model batch_size max_gpu_mem_mib faketensor_mib"
        rows += [_real_cnn(row) for row in read_table(folder, "real_cnn_memory.csv", columns)]
    return ImportedSet(solo=rows)


def _cnn(row: PublishedRow) -> SoloRow:
    status, flags = "ok", ["memory_includes_context"]
    if row.choice("status", ("SUCCESSFUL", "OOM_CRASH")) == "OOM_CRASH":
        status, flags = "out_of_memory", [*flags, "memory_censored"]
    elif row.number("max_gpu_mem_mib") <= _PLAUSIBLE_MEMORY_MIB:
        status, flags = "rejected", [*flags, "memory_implausible"]
    channels, side = row.integer("input_channels", minimum=1), row.integer("input_size", minimum=1)
    graph, doubts = _layer_features(row, channels, side)
    return _generated(
        row,
        "cnn",
        architecture=f"cnn_{row.text('arch')}",
        input_shape=f"{channels}x{side}x{side}",
        status=status,
        quality_flags=(*flags, *doubts),
        features_json=features_json(_published(row, _CNN_FEATURES), graph),
    )


def _mlp(row: PublishedRow) -> SoloRow:
    inputs = row.integer("input_size", minimum=1)
    graph, doubts = _layer_features(row, inputs, 1)
    return _generated(
        row,
        "mlp",
        architecture=f"mlp_{row.text('arch')}",
        input_shape=str(inputs),
        quality_flags=("memory_includes_context", *doubts),
        features_json=features_json(_published(row, _MLP_FEATURES), graph),
    )


def _generated(row: PublishedRow, campaign: str, **known: Any) -> SoloRow:  # noqa: ANN401 (columns of the row)
    batch = row.integer("batch_size", minimum=1)
    utilization_pct = row.optional_number("gpu_util_pct", maximum=100)
    return _alone(
        row,
        campaign,
        job_key=job_key("gpumemnet", row.text("config"), batch, campaign=campaign, set=row.cells.get("set", "")),
        family=campaign,
        batch=batch,
        utilization_ratio=None if utilization_pct is None else utilization_pct / 100,
        sm_activity_ratio=row.optional_number("smact", maximum=1),
        **known,
    )


def _alone(row: PublishedRow, campaign: str, **known: Any) -> SoloRow:  # noqa: ANN401 (columns of the row)
    return solo_row(
        run_id=f"gpumemnet-{campaign}-{row.line}",
        campaign=campaign,
        device=_DEVICE,
        optimizer="adam",
        memory_peak_bytes=round(row.number("max_gpu_mem_mib") * MEBIBYTE),
        memory_context_bytes=0,
        **known,
    )


def _timm(row: PublishedRow, features: TimmFeatures) -> SoloRow:
    model, batch = row.text("model"), row.integer("batch_size", minimum=1)
    flags = [flag for column, flag in _TIMM_FLAGS.items() if row.flag(column)]
    known = features.at_default_size(model)
    graph = None if known is None else features_at_batch(known, batch, optimizer_slots=_ADAM_SLOTS)
    return _alone(
        row,
        "timm",
        job_key=job_key("gpumemnet", model, batch, campaign="timm"),
        architecture=model,
        family=model_family(model),
        batch=batch,
        input_shape=features.default_shape(model),
        status="ok" if row.flag("clean") else "rejected",
        quality_flags=("memory_includes_context", *flags),
        features_json=features_json(_published(row, _TIMM_FEATURES), graph),
    )


def _fc_mnist(row: PublishedRow) -> SoloRow:
    neurons, layers = row.integer("neurons", minimum=1), row.integer("layers", minimum=1)
    published = {"neurons": neurons, "layers": layers, "horus_formula_mb": row.number("horus_formula_mb")}
    return _alone(
        row,
        "fc_mnist",
        job_key=job_key("gpumemnet", "fc_mnist", 1, neurons=neurons, layers=layers),
        architecture="fc_mnist",
        family="mlp",
        batch=1,
        input_shape="784",
        quality_flags=("memory_includes_context", "batch_not_published"),
        features_json=features_json(published),
    )


def _real_cnn(row: PublishedRow) -> SoloRow:
    model, batch = row.text("model"), row.integer("batch_size", minimum=1)
    return _alone(
        row,
        "real_cnn",
        job_key=job_key("gpumemnet", model, batch, campaign="real_cnn"),
        architecture=model,
        family=model_family(model),
        batch=batch,
        quality_flags=("memory_includes_context",),
        features_json=features_json({"batch_size": batch, "faketensor_mib": row.number("faketensor_mib")}),
    )


def _published(row: PublishedRow, columns: str) -> Features:
    features: dict[str, float | int | str | None] = {}
    for name in columns.split():
        features[name] = row.cells[name] or None if name in _TEXTS else row.optional_number(name)
    return features


def _layer_features(row: PublishedRow, channels: int, side: int) -> tuple[Features, tuple[str, ...]]:
    """Features of the published layers, and the flag that states why there are none."""
    batch, device = row.integer("batch_size", minimum=1), DEVICE_TYPES[_DEVICE]
    if row.text("layers") == "[]":
        return step_features([], batch, device), ("layers_not_published",)
    try:
        layers = parse_layers(row.text("layers"))
    except ValueError as error:
        raise row.refusal("layers", str(error)) from None
    try:
        work = count_work(layers, channels, side)
    except UnexplainedLayerError:
        return {}, ("layers_not_understood",)
    figures = {**graph_features(work), "reserved_bytes_per_sample": reserved_bytes(work)}
    return {**figures, **step_features(work, batch, device)}, ()
