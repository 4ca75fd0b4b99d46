"""A small set as `datasets import` writes it: rows of an A100 that name networks of our zoo and hold no graph."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import numpy as np

from cotenant.profile_schema import SoloRow
from predictor_service.fitting.table_rows import served_figures
from predictor_service.importers.imported_set import ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.labels_only import write_labels
from predictor_service.importers.model_families import model_family
from predictor_service.importers.zoo_features import ZooFeatures
from predictor_service.learning.learning_task import JobFacts

DEVICE: Final = "NVIDIA A100-SXM4-40GB"
ARCHITECTURES: Final = (
    "resnet18", "resnet50", "vgg11", "vgg16", "densenet121", "efficientnet_b0", "mobilenet_v2", "squeezenet1_0",
    "alexnet", "bert_base", "inception3", "googlenet", "mnasnet1_0", "shufflenet_v2_x1_0",
)  # fmt: skip
BATCHES: Final = (8, 16, 32)
MEMORY_FACTOR: Final = 1.3
STEP_FACTOR: Final = 1.7


def table_rows(device: str = DEVICE, seed: int = 0, campaign: str = "table") -> list[SoloRow]:
    """Returns rows whose true formulas are known, with 2 % of noise."""
    random, known = np.random.default_rng(seed), ZooFeatures.load()
    rows = []
    for name in ARCHITECTURES:
        graph = known.of(name)
        for batch in BATCHES if graph else ():
            row = solo_row(
                run_id=f"{campaign}-{name}-{batch}",
                campaign=campaign,
                device=device,
                job_key=job_key("table", name, batch),
                architecture=name,
                family=model_family(name),
                batch=batch,
                optimizer="adam",
                features_json=features_json({"batch_size": batch}, graph),
            )
            job = served_figures(facts_of(row, dict(graph or {})))
            noise = np.exp(0.02 * random.standard_normal(2))
            rows.append(
                dataclasses.replace(
                    row,
                    memory_peak_bytes=int(MEMORY_FACTOR * job.graph["analytical_memory_bytes"] * noise[0]),
                    memory_context_bytes=0,
                    step_ms_mean=STEP_FACTOR * job.graph["roofline_ms"] * float(noise[1]),
                )
            )
    return rows


def facts_of(row: SoloRow, graph: dict[str, float]) -> JobFacts:
    """Returns what is known of a row's job before it ran."""
    return JobFacts(
        job_key=row.job_key,
        architecture=row.architecture,
        family=row.family,
        batch=row.batch,
        micro_batch_size=row.sub_batch,
        device=row.device,
        optimizer=row.optimizer,
        precision=row.precision,
        input_wait_ratio=row.input_wait_ratio,
        gpus=row.gpus,
        raw={},
        graph=graph,
        labels={"mode": row.mode},
    )


def write_table_dataset(folder: Path, rows: list[SoloRow] | None = None) -> None:
    """Writes the set: compressed, without graphs/, figures of graphs joined when read."""
    write_labels(folder, ImportedSet(solo=table_rows() if rows is None else rows))
