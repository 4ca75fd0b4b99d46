"""From measured rows to learning tasks, with every row that is left out counted by its reason."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cotenant.job_settings import JobSettings
from cotenant.profile_schema import PairRow, SoloRow
from predictor_service.cross_device.step_model import answers_for
from predictor_service.errors import CallerError
from predictor_service.features.devices import find_device_type
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.features.graphs.graph_features import GraphFeatures
from predictor_service.features.graphs.operator_families import MULTIPLYING_FAMILIES
from predictor_service.features.job_features import FEATURES, build_features
from predictor_service.features.job_settings import check_settings
from predictor_service.learning.graph_tables import REFERENCE, join_figures
from predictor_service.learning.learning_task import ALL_DEVICES, JobFacts, LearningTask, SoloFigures
from predictor_service.learning.profile_files import MeasuredProfiles
from predictor_service.selection.targets import MEMORY, SLOWDOWN, SM_ACTIVITY, STEP, UTILIZATION, Target

NOT_COMPARABLE: Final = "not_comparable"
"""Label of a figure, by its name, that a set does not state as others do."""
_FEATURE_PREFIXES: Final = ("set.", "graph.")
_ANOTHER_DEVICE: Final = "another device type"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadLearningTask:
    """A learning task and what did not become part of it.

    Attributes:
        learning_task: May have no rows.
        excluded: Rows left out by reason.
    """

    learning_task: LearningTask
    excluded: Mapping[str, int]


def list_devices(profiles: MeasuredProfiles, target: Target) -> list[str]:
    """Device types that have a measurement of a target, by name."""
    if target is SLOWDOWN:
        return sorted({row.device for row in profiles.pairs if row.slowdown_ratio is not None})
    return sorted({row.device for row in profiles.solo if _MEASURED[target.name](row) is not None})


def list_campaigns(profiles: MeasuredProfiles, target: Target, device: str) -> list[str]:
    """Campaigns that have rows of a device type, by name."""
    rows: Sequence[SoloRow | PairRow] = profiles.pairs if target is SLOWDOWN else profiles.solo
    return sorted({row.campaign for row in rows if device in (row.device, ALL_DEVICES)})


def read_learning_task(
    profiles: MeasuredProfiles, target: Target, device: str, campaign: str | None = None
) -> ReadLearningTask:
    """Builds one learning task.

    Args:
        profiles: Measured rows.
        target: What was measured.
        device: Device type by the name that the rows use, or `ALL_DEVICES`.
        campaign: None = all of them; every row then carries its own as a label, and a slowdown is still taken against
            the solo time of its own campaign.

    Returns:
        The learning task with rows in file order.
    """
    excluded: Counter[str] = Counter()
    selection = _Selection(profiles, device, campaign, excluded)
    if target is SLOWDOWN:
        alone = _facts_of_jobs(profiles)
        rows = list(_pair_rows(selection, lambda row, key: alone.get((row.campaign, row.device, key))))
    else:
        rows = list(_solo_rows(selection, target))
    campaigns = sorted({row.jobs[0].labels["campaign"] for row in rows})
    learning_task = _learning_task(rows, target, device, campaign or "+".join(campaigns))
    return ReadLearningTask(learning_task=learning_task, excluded=dict(sorted(excluded.items())))


def _not_measured(target: Target) -> str:
    return f"no {target.quantity} measured"


def _learning_task(rows: Sequence[_Row], target: Target, device: str, campaign: str) -> LearningTask:
    return LearningTask(
        target=target,
        device=device,
        campaign=campaign,
        measured=np.array([row.measured for row in rows], dtype=np.float64),
        row_ids=tuple(row.row_id for row in rows),
        jobs=tuple(row.jobs[0] for row in rows),
        others=tuple(row.jobs[1:] for row in rows),
    )


def pool_learning_tasks(sets: Sequence[MeasuredProfiles], target: Target, device: str) -> ReadLearningTask:
    """Builds the learning task of several sets that know the same jobs: what a job does alone is the mean of them all.

    Args:
        sets: At least one.
        target: What was measured.
        device: Device type by the name that the rows use.

    Returns:
        The learning task with the rows of one set after the other; rows of other device types are not counted.
    """
    excluded: Counter[str] = Counter()
    selections = [_Selection(profiles, device, None, excluded) for profiles in sets]
    if target is SLOWDOWN:
        alone = _pooled_facts(sets, device)
        rows = [row for each in selections for row in _pair_rows(each, lambda _, key: alone.get(key))]
    else:
        rows = [row for each in selections for row in _solo_rows(each, target)]
    del excluded[_ANOTHER_DEVICE], excluded[_not_measured(target)]
    return ReadLearningTask(
        learning_task=_learning_task(rows, target, device, "+".join(each.name for each in sets)), excluded=excluded
    )


@dataclass(frozen=True, slots=True)
class _Row:
    row_id: str
    measured: float
    jobs: tuple[JobFacts, ...]


@dataclass(frozen=True, slots=True)
class _Selection:
    profiles: MeasuredProfiles
    device: str
    campaign: str | None
    excluded: Counter[str]

    def refuses(self, row: SoloRow | PairRow) -> bool:
        """Whether a row is not part of any learning task of this device and campaign; counts why."""
        reason = self._reason(row)
        if reason:
            self.excluded[reason] += 1
        return bool(reason)

    def _reason(self, row: SoloRow | PairRow) -> str:
        if self.device not in (row.device, ALL_DEVICES):
            return _ANOTHER_DEVICE
        if self.campaign not in (row.campaign, None):
            return "another campaign"
        return "" if row.status == "ok" else f"status {row.status}"


def _solo_rows(selection: _Selection, target: Target) -> Iterator[_Row]:
    for row in selection.profiles.solo:
        if selection.refuses(row):
            continue
        value = _MEASURED[target.name](row)
        if value is None:
            selection.excluded[_not_measured(target)] += 1
        elif value <= 0 and target.scale == "log_ratio":
            selection.excluded[f"{target.quantity} is not above 0"] += 1
        else:
            yield _Row(row.run_id, value, (_facts(row, selection.profiles),))


def _pair_rows(selection: _Selection, find_job: Callable[[PairRow, str], JobFacts | None]) -> Iterator[_Row]:
    for row in selection.profiles.pairs:
        if selection.refuses(row):
            continue
        keys = (row.victim_job_key, *row.other_job_keys)
        jobs = [find_job(row, key) for key in keys]
        known = tuple(job for job in jobs if job is not None)
        if row.slowdown_ratio is None:
            selection.excluded[_not_measured(SLOWDOWN)] += 1
        elif len(known) < len(jobs):
            selection.excluded["a job has no solo row of the same campaign and device type"] += 1
        elif not row.other_job_keys:
            selection.excluded["no co-located job"] += 1
        else:
            labelled = tuple(_as_co_located(job, row) for job in known)
            yield _Row(row.run_id, row.slowdown_ratio, labelled)


def _as_co_located(job: JobFacts, row: PairRow) -> JobFacts:
    """The job as it ran in a pair, which may be of another campaign than what it did alone."""
    return dataclasses.replace(job, labels={**job.labels, "share_mode": row.share_mode, "campaign": row.campaign})


def _facts_of_jobs(profiles: MeasuredProfiles) -> dict[tuple[str, str, str], JobFacts]:
    """What is known of every job by campaign, device type and key, repetitions averaged."""
    rows = defaultdict(list)
    for row in profiles.solo:
        if row.status == "ok" and row.gpus == 1 and row.step_ms_mean is not None:
            rows[row.campaign, row.device, row.job_key].append(row)
    return {
        key: dataclasses.replace(_facts(members[0], profiles), solo=_solo_figures(members))
        for key, members in rows.items()
    }


def _pooled_facts(sets: Iterable[MeasuredProfiles], device: str) -> dict[str, JobFacts]:
    """What is known of every job of a device type by key, repetitions of all sets averaged."""
    rows: dict[str, list[SoloRow]] = defaultdict(list)
    sources: dict[str, MeasuredProfiles] = {}
    for profiles in sets:
        for row in profiles.solo:
            if row.status == "ok" and row.device == device and row.gpus == 1 and row.sub_batch == row.batch:
                rows[row.job_key].append(row)
                sources.setdefault(row.job_key, profiles)
    return {
        key: dataclasses.replace(_facts(members[0], sources[key]), solo=_solo_figures(members))
        for key, members in rows.items()
    }


def _solo_figures(rows: Sequence[SoloRow]) -> SoloFigures:
    return SoloFigures(
        step_ms=_mean(row.step_ms_mean for row in rows),
        utilization_ratio=_mean(row.utilization_ratio for row in rows),
        dram_activity_ratio=_mean(row.dram_activity_ratio for row in rows),
        memory_bytes=_mean(_memory_bytes(row) for row in rows),
    )


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _facts(row: SoloRow, profiles: MeasuredProfiles) -> JobFacts:
    numbers, labels = _published(row.features_json)
    reference = labels.pop(REFERENCE, "")
    if reference:
        numbers["graph."].update(join_figures(reference, row.sub_batch, row.optimizer))
    numbers["graph."].update(profiles.graph_figures.get(row.job_key, {}))
    graph = profiles.graphs.get(row.graph_sha256 or "")
    if graph is not None:
        numbers["graph."].update(_graph_numbers(graph, row))
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
        raw=numbers["set."],
        graph=numbers["graph."],
        labels={**labels, **_faults(row), "mode": row.mode, "share_mode": row.share_mode, "campaign": row.campaign},
    )


def _faults(row: SoloRow) -> dict[str, str]:
    """Figures that a set does not measure as others do, by name: a method should not compare them between jobs."""
    return {name: NOT_COMPARABLE for flag, name in _NOT_COMPARABLE.items() if flag in row.quality_flags}


_NOT_COMPARABLE: Final[Mapping[str, str]] = {"step_unit_differs": "step_ms", "batch_not_published": "batch"}


def _published(features_json: str | None) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Splits published features into numbers by prefix and labels; the prefixes are removed, nulls left out."""
    numbers: dict[str, dict[str, float]] = {prefix: {} for prefix in _FEATURE_PREFIXES}
    labels: dict[str, str] = {}
    for key, value in json.loads(features_json or "{}").items():
        prefix = next((prefix for prefix in _FEATURE_PREFIXES if key.startswith(prefix)), "")
        name = key.removeprefix(prefix)
        if isinstance(value, str):
            labels[name] = value
        elif isinstance(value, int | float) and math.isfinite(value):
            numbers[prefix or "set."][name] = float(value)
    return numbers, labels


def _graph_numbers(graph: GraphDescription, row: SoloRow) -> dict[str, float]:
    """Physical counts of a graph at the row's batch; on a device of the catalogue the served vector as well."""
    try:
        features = graph.at_batch(row.sub_batch)
    except CallerError:
        return {}
    numbers = {
        field.name: float(value)
        for field in dataclasses.fields(features)
        if isinstance(value := getattr(features, field.name), int)
    }
    device = find_device_type(row.device)
    try:
        settings = _settings(row)
    except CallerError:  # a setting that the catalogue of settings lacks, e.g. another optimizer
        return numbers
    if device is None:
        return numbers
    built = build_features(features, settings, device)
    named = zip(FEATURES, built.values.tolist(), strict=True)
    if answers_for(device):  # what is told of processors is what it was: their models read every number of a graph
        numbers |= _macs_by_family(features)
    return numbers | {
        **{feature.name: value for feature, value in named},
        "roofline_ms": built.roofline_ms,
        "analytical_memory_bytes": built.analytical_memory_bytes,
    }


def _macs_by_family(features: GraphFeatures) -> dict[str, float]:
    """Multiply-accumulates as the model of all device types sums them."""
    counted = zip(features.operator_families, features.operator_flops.tolist(), strict=True)
    macs = {f"{family.value}_macs": 0.0 for family in MULTIPLYING_FAMILIES}
    for family, flops in counted:
        if family in MULTIPLYING_FAMILIES:
            macs[f"{family.value}_macs"] += flops / 2
    return macs


def _settings(row: SoloRow) -> JobSettings:
    return check_settings(
        JobSettings(
            global_batch_size=row.batch,
            mode=row.mode,
            precision=row.precision,
            optimizer="sgd" if row.mode == "infer" else row.optimizer,
            input_wait_ratio=row.input_wait_ratio,
            host_memory_bytes=row.host_memory_bytes,
            disk_read_bytes_per_s=row.disk_read_bytes_per_s,
            network_bytes_per_s=row.network_bytes_per_s,
        )
    )


def _memory_bytes(row: SoloRow) -> float | None:
    """What the device cannot give to others: the allocator's peak and the context."""
    allocator_bytes = row.memory_reserved_bytes or row.memory_peak_bytes
    return None if not allocator_bytes else float(allocator_bytes + (row.memory_context_bytes or 0))


_MEASURED: Final[Mapping[str, Callable[[SoloRow], float | None]]] = {
    UTILIZATION.name: lambda row: row.utilization_ratio,
    SM_ACTIVITY.name: lambda row: row.sm_activity_ratio,
    MEMORY.name: _memory_bytes,
    STEP.name: lambda row: row.step_ms_mean,
}
