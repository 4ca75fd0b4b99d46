"""The learning tasks that `solo_accuracy` scores, read from the public sets."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from predictor_service.importers.gavel import import_gavel
from predictor_service.importers.gpumemnet import import_gpumemnet
from predictor_service.importers.imported_set import ImportedSet
from predictor_service.importers.miso import import_miso
from predictor_service.importers.pollux import import_pollux
from predictor_service.importers.timm_bench import import_timm_bench
from predictor_service.importers.torchvision_bench import import_torchvision_bench
from predictor_service.learning.learning_task import ALL_DEVICES, JobFacts, LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import MeasuredProfiles
from predictor_service.selection.targets import MEMORY, SM_ACTIVITY, STEP, UTILIZATION, Target

FAKE_TENSOR: Final = "faketensor"
_A100: Final = "NVIDIA A100-SXM4-40GB"
_BYTES_PER_PIXEL: Final = 12
"""Three channels of 32-bit numbers."""
_RTX_3090: Final = "NVIDIA GeForce RTX 3090"
_T4: Final = "Tesla T4"


@dataclass(frozen=True, slots=True)
class Bar:
    """What was promised: a metric, or its ratio to the baseline's, within a limit."""

    metric: str
    limit: float
    of_baseline: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One target of one set by one rule.

    Attributes:
        target: What is predicted.
        data: Folder of the public set.
        campaign: Of the set; None = all.
        device: Device type, or all.
        level: What is unseen.
        without: Published columns that begin so are taken from both sides.
        folds: None = the benchmark's own number.
        bars: What was promised.
        ablated: 0 = no ablation; n = on one architecture in n.
        also_trained: Of timm, only models that its table of training speeds publishes too: the easier two thirds.
    """

    target: Target
    data: str
    campaign: str | None = None
    device: str = _A100
    level: str = "architecture"
    without: str = ""
    folds: int | None = None
    bars: Sequence[Bar] = ()
    ablated: int = 0
    also_trained: bool = False


_MEMORY_BOUND: Final = (Bar("coverage_99_ratio", 0.985, False), Bar("upper_99_over_actual_mean", 1.35, False))
TASKS: Final[Mapping[str, Task]] = {
    "utilization, cnn, unseen architecture": Task(
        target=UTILIZATION, data="gpumemnet", campaign="cnn", folds=7, ablated=1,
        bars=(Bar("mae", 0.85), Bar("rmsle", 0.10, False)),
    ),
    "utilization, mlp, unseen architecture": Task(
        target=UTILIZATION, data="gpumemnet", campaign="mlp", bars=(Bar("mae", 0.85),)
    ),
    "sm_activity, cnn, unseen architecture": Task(target=SM_ACTIVITY, data="gpumemnet", campaign="cnn", folds=7),
    "memory, timm, unseen model": Task(
        target=MEMORY, data="gpumemnet", campaign="timm", without=FAKE_TENSOR, ablated=4,
        bars=(Bar("mape_ratio", 0.60), *_MEMORY_BOUND),
    ),
    "memory, timm, unseen model, FakeTensor given to both": Task(
        target=MEMORY, data="gpumemnet", campaign="timm", bars=(Bar("mape_ratio", 0.90),)
    ),
    "memory, timm, unseen family": Task(
        target=MEMORY, data="gpumemnet", campaign="timm", level="family", without=FAKE_TENSOR,
        bars=(Bar("mape_ratio", 0.75),),
    ),
    "memory, timm, models in the table of training speeds": Task(
        target=MEMORY, data="gpumemnet", campaign="timm", without=FAKE_TENSOR, also_trained=True,
        bars=(Bar("mape_ratio", 0.60), *_MEMORY_BOUND),
    ),
    "memory, timm, models in the table of training speeds, FakeTensor given to both": Task(
        target=MEMORY, data="gpumemnet", campaign="timm", also_trained=True, bars=(Bar("mape_ratio", 0.90),)
    ),
    "memory, cnn, unseen architecture": Task(target=MEMORY, data="gpumemnet", campaign="cnn", folds=7),
    "step_time, timm training, unseen family": Task(
        target=STEP, data="timm_bench", campaign="train", device=_RTX_3090, level="family"
    ),
    "step_time, torchvision, unseen device": Task(
        target=STEP, data="torchvision_bench", device=ALL_DEVICES, level="device"
    ),
    "step_time, gavel on 3 GPU types, unseen architecture": Task(target=STEP, data="gavel", device=ALL_DEVICES),
    "step_time, gavel, unseen device": Task(target=STEP, data="gavel", device=ALL_DEVICES, level="device"),
    "step_time, miso, unseen slice of an A100": Task(
        target=STEP, data="miso", campaign="mig", device=ALL_DEVICES, level="device"
    ),
    "step_time, pollux on a T4, unseen batch": Task(target=STEP, data="pollux", device=_T4, level="job"),
    "step_time, pollux on a T4, unseen architecture": Task(target=STEP, data="pollux", device=_T4),
    "utilization, miso, unseen architecture": Task(target=UTILIZATION, data="miso", campaign="util_collection"),
}  # fmt: skip
"""By the name under which they are reported."""

ABLATIONS: Final[Mapping[str, Callable[[str], bool]]] = {
    "simulated step": lambda name: name.startswith("graph.simulated_"),
    "what backward keeps": lambda name: "saved_for_backward" in name or "allocated" in name,
    "peak of live tensors": lambda name: "step_peak" in name,
    "operator counts": lambda name: name.endswith("_nodes"),
    "all graph figures": lambda name: name.startswith("graph."),
    "published columns": lambda name: name.startswith("set."),
}
"""Groups of columns by name, and which columns belong to them."""

_IMPORTERS: Final[Mapping[str, Callable[[Path], ImportedSet]]] = {
    "gavel": import_gavel,
    "gpumemnet": import_gpumemnet,
    "miso": import_miso,
    "pollux": import_pollux,
    "timm_bench": import_timm_bench,
    "torchvision_bench": import_torchvision_bench,
}


def read_task(task: Task, root: Path) -> LearningTask:
    """The rows of a task; of jobs on one device, with graph figures, and of timm with what its own table publishes."""
    learning_task = read_learning_task(_read(task.data, root), task.target, task.device, task.campaign).learning_task
    jobs = tuple(_without(job, task.without) for job in learning_task.jobs)
    learning_task = dataclasses.replace(learning_task, jobs=jobs)
    if task.campaign == "timm":
        learning_task = _join_timm_table(learning_task, root, also_trained=task.also_trained)
    elif task.data != "gpumemnet":
        learning_task = learning_task.subset(
            [row for row, job in enumerate(learning_task.jobs) if job.graph and job.gpus == 1]
        )
    return learning_task


def ablate(learning_task: LearningTask, group: str) -> LearningTask:
    """The same rows without one of `ABLATIONS`."""
    belongs = ABLATIONS[group]
    jobs = tuple(
        dataclasses.replace(
            job,
            graph={name: value for name, value in job.graph.items() if not belongs(f"graph.{name}")},
            raw={name: value for name, value in job.raw.items() if not belongs(f"set.{name}")},
        )
        for job in learning_task.jobs
    )
    return dataclasses.replace(learning_task, jobs=jobs)


@cache
def _read(data: str, root: Path) -> MeasuredProfiles:
    imported = _IMPORTERS[data](root / data)
    return MeasuredProfiles(name=data, solo=tuple(imported.solo), pairs=tuple(imported.pairs))


def _without(job: JobFacts, prefix: str) -> JobFacts:
    if not prefix:
        return job
    return dataclasses.replace(job, raw={name: job.raw[name] for name in job.raw if not name.startswith(prefix)})


def _join_timm_table(learning_task: LearningTask, root: Path, *, also_trained: bool) -> LearningTask:
    """Gives both sides parameters, multiply-accumulates and activations as timm publishes them at the same image size.

    Rows whose model it does not publish, or whose graph we lack, are left out, so that both sides are judged on rows
    that both know something of.
    """
    published = _timm_table(root)
    trained = _timm_trained(root) if also_trained else None
    rows, jobs = [], []
    for row, job in enumerate(learning_task.jobs):
        figures = published.get((job.architecture, _side(job)))
        if figures is not None and job.graph and (trained is None or job.architecture in trained):
            rows.append(row)
            jobs.append(dataclasses.replace(job, raw={**job.raw, **figures}))
    return dataclasses.replace(learning_task.subset(rows), jobs=tuple(jobs))


def _side(job: JobFacts) -> int:
    """Height of the image."""
    return round(math.sqrt(job.graph.get("input_bytes_per_sample", 0.0) / _BYTES_PER_PIXEL))


@cache
def _timm_table(root: Path) -> dict[tuple[str, int], dict[str, float]]:
    table: dict[tuple[str, int], dict[str, float]] = {}
    with gzip.open(root / "timm_bench" / "infer_all_gpus.csv.gz", "rt", encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            names = ("params_m", "fwd_gmacs", "fwd_mactivations")
            if all(line[name] for name in names):
                key = line["model"].split(".")[0], int(float(line["infer_img_size"]))
                table.setdefault(key, {name: float(line[name]) for name in names})
    return table


@cache
def _timm_trained(root: Path) -> frozenset[str]:
    with (root / "timm_bench" / "train_rtx3090.csv").open(encoding="utf-8", newline="") as file:
        return frozenset(line["model"].split(".")[0] for line in csv.DictReader(file) if line["fwd_gmacs"])
