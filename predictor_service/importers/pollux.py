"""Pollux: step and gradient-exchange times of five applications over placements and batches on T4, and curves.

Campaign placements has up to 4 nodes, campaign scalability up to 64 devices; batch is that of all devices, sub_batch
that of one. A curve's loss is what falls while training goes well: 1 - the metric where the published one is an
accuracy, hit rate or F1 score (bert publishes it in per cent), the metric itself where it is a loss.

The tables state neither precision nor optimizer; the scripts that were measured do: imagenet and yolov3 call
`amp.initialize`, whose default is mixed precision, the others train in 32 bits. All of them count statistics of every
gradient in every step, which no graph shows, and write progress to disk. yolov3 draws the size of its images anew again
and again, 320 to 608 pixels a side, so that no graph is that of its steps: flagged image_size_drawn.
Source: github petuum/adaptdl, benchmark/models (main.py, run_squad.py, train.py, config of yolov3).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from cotenant.profile_schema import LossCurveRow, SoloRow
from predictor_service.importers.imported_set import ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.model_families import model_family
from predictor_service.importers.published_table import PublishedRow, read_table
from predictor_service.importers.zoo_features import ZooFeatures

_DEVICE: Final = "Tesla T4"
_TIME_COLUMNS: Final = "app source placement n_nodes n_gpus local_batch step_time_s sync_time_s samples_per_s"
_CURVE_COLUMNS: Final = "app batch_size epoch progress iteration metric grad_sqr grad_var"


class _Application(NamedTuple):
    """What a script trains, and how."""

    architecture: str
    precision: str
    optimizer: str
    quality_flags: tuple[str, ...] = ()


_APPLICATIONS: Final = {
    "bert": _Application("bert_base", "fp32", "adamw"),
    "cifar10": _Application("resnet18_cifar", "fp32", "momentum"),
    "imagenet": _Application("resnet50", "fp16", "momentum"),
    "ncf": _Application("ncf", "fp32", "adam"),
    "yolov3": _Application("yolov3", "fp16", "momentum", ("image_size_drawn",)),
    "deepspeech2": _Application("deepspeech2", "fp32", "momentum"),
}
# The largest value of an application's metric; None: the metric is a loss.
_METRIC_MAXIMA: Final = {
    "bert": 100.0,
    "cifar10": 1.0,
    "imagenet": 1.0,
    "ncf": 1.0,
    "yolov3": None,
    "deepspeech2": None,
}


def import_pollux(folder: Path) -> ImportedSet:
    """Reads throughput.csv and validation_curves.csv.

    Raises:
        TrainingDataError: A file is not what the set's README describes; names file, line and column.
    """
    return ImportedSet(
        solo=[_solo(row) for row in read_table(folder, "throughput.csv", _TIME_COLUMNS)],
        curves=[_point(row) for row in read_table(folder, "validation_curves.csv", _CURVE_COLUMNS)],
    )


def _solo(row: PublishedRow) -> SoloRow:
    application = row.choice("app", tuple(_APPLICATIONS))
    architecture, precision, optimizer, quality_flags = _APPLICATIONS[application]
    gpus, nodes = row.integer("n_gpus", minimum=1), row.integer("n_nodes", minimum=1)
    per_device, placement = row.integer("local_batch", minimum=1), row.cells["placement"]
    return solo_row(
        run_id=f"pollux-{row.line}",
        campaign=row.choice("source", ("placements", "scalability")),
        device=_DEVICE,
        job_key=job_key("pollux", application, per_device, gpus=gpus, nodes=nodes, placement=placement),
        architecture=architecture,
        family=model_family(architecture),
        precision=precision,
        optimizer=optimizer,
        batch=per_device * gpus,
        sub_batch=per_device,
        gpus=gpus,
        nodes=nodes,
        step_ms_mean=1e3 * row.number("step_time_s", above=0),
        sync_ms_mean=1e3 * row.number("sync_time_s"),
        quality_flags=quality_flags,
        features_json=features_json(
            {"app": application, "local_batch": per_device, "placement": placement or None},
            ZooFeatures.load().of(architecture),
        ),
    )


def _point(row: PublishedRow) -> LossCurveRow:
    application = row.choice("app", tuple(_APPLICATIONS))
    maximum = _METRIC_MAXIMA[application]
    metric = row.number("metric") if maximum is None else row.number("metric", maximum=maximum)
    return LossCurveRow(
        run=f"pollux-{application}-batch-{row.integer('batch_size', minimum=1)}",
        step=row.integer("iteration"),
        epoch=row.number("epoch"),
        split="validation",
        loss=metric if maximum is None else 1 - metric / maximum,
        elapsed_ms=None,
    )
