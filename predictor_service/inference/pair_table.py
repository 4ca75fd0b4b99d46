"""The pair table: what was measured of pairs, and which other jobs a question needs so that it informs other pairs.

A job that a finished one slowed down will be slowed down by the next one too. So a question about pairs is answered
together with jobs that are not in it but were measured here: first those measured with a job of the question, then
those that were measured most, since what is wrong about a whole device type shows in any pair. They join by what the
last question stated of them alone, else by their graphs.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from predictor_service.inference.observed_pairs import Observation, ObservedPairs, Pair
from predictor_service.inference.records import PairJob
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.profile_store.measurement_window import MeasuredJob, StoredMeasurementWindow
from predictor_service.profile_store.pair_samples import PairSamples

ALONE: Final = "known_alone"
"""In the content of a pair question's entry: for each job, null or its figures, see `write_alone`."""
PARTNERS_MAX: Final = 80
"""Jobs that may join a question."""
JOBS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPair:
    """One row of the table.

    Attributes:
        device: Device type, in lower case.
        pair: Keys of victim and other job.
        seen: What is known.
        victim: What is known of the job; None where only outcomes reported it.
        other: The same of the other job.
        sharing: How the two shared the device; unstated = all windows, some of which do not say it.
    """

    device: str
    pair: Pair
    seen: Observation
    victim: MeasuredJob | None
    other: MeasuredJob | None
    sharing: DeviceSharing = DeviceSharing.UNSTATED


def write_alone(jobs: Sequence[PairJob]) -> list[list[float] | None]:
    """What a question states of its jobs alone, as JSON: step, utilization, memory and wait, or None."""
    return [
        [step_ms, job.known_utilization_ratio or 0.0, job.known_memory_bytes or 0.0, wait_ratio]
        if job.is_known
        else None
        for job in jobs
        for step_ms in (job.known_step_ms or 0.0,)
        for wait_ratio in (job.settings.input_wait_share(step_ms) if step_ms else 0.0,)
    ]


def read_alone(content: Mapping[str, Any]) -> dict[str, PairJob]:
    """What the entry of a pair question keeps of its jobs alone, by their keys; what cannot be read is left out."""
    keys, rows = content.get("job_keys", content.get("job_ids", ())), content.get(ALONE, ())
    if not isinstance(rows, list) or not isinstance(keys, list):
        return {}
    read = ((str(key), _read_row(str(key), row)) for key, row in zip(keys, rows, strict=False))
    return {key: job for key, job in read if job is not None}


def _read_row(key: str, row: object) -> PairJob | None:
    if not isinstance(row, list) or len(row) != _ALONE_FIGURES:
        return None
    if not all(isinstance(value, int | float) and math.isfinite(value) and value >= 0 for value in row):
        return None
    step_ms, utilization_ratio, memory_bytes, wait_ratio = row
    if not (step_ms > 0 and memory_bytes > 0 and utilization_ratio <= 1 and wait_ratio < 1):
        return None
    return PairJob(
        job_id=key,
        settings=JobSettings(global_batch_size=1, input_wait_ratio=wait_ratio),
        known_step_ms=step_ms,
        known_utilization_ratio=utilization_ratio,
        known_memory_bytes=memory_bytes,
        measured_key=key,
    )


_ALONE_FIGURES: Final = 4


class PairTable:
    """Measured pairs of all device types; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observed = ObservedPairs()
        self._samples = PairSamples()
        self._jobs: OrderedDict[str, MeasuredJob] = OrderedDict()
        self._alone: OrderedDict[tuple[str, str], PairJob] = OrderedDict()

    def learn_outcomes(self, joined: Iterable[tuple[PredictionEntry, Mapping[str, Any]]]) -> None:
        """Folds in outcomes of pairs, see `ObservedPairs.learn`, and what their questions stated of the jobs alone."""
        joined = list(joined)
        for entry, _ in joined:
            if entry.kind == "pairs":
                self.note_alone(entry.device, read_alone(entry.content))
        self._observed.learn(joined)

    def note_alone(self, device: str, jobs: Mapping[str, PairJob]) -> None:
        """Remembers what a question stated of jobs alone on a device type, by their keys; the newest counts."""
        name = device.strip().lower()
        with self._lock:
            for key, job in jobs.items():
                if job.is_known:
                    self._alone[name, key] = job
                    self._alone.move_to_end((name, key))
            while len(self._alone) > JOBS_MAX:
                self._alone.popitem(last=False)

    def learn_windows(self, stored: Iterable[StoredMeasurementWindow]) -> int:
        """Folds in windows as they are kept, each once.

        Args:
            stored: In the order of the store.

        Returns:
            How many slowdowns became known.
        """
        learned = 0
        for item in stored:
            for sample in self._samples.take(item.window, item.at_ms) if item.window is not None else ():
                keys = sample.victim.key, sample.other.key
                self._describe(dict(zip(keys, (sample.victim, sample.other), strict=True)))
                self._observed.observe(
                    sample.device,
                    *keys,
                    sample.slowdown_ratio,
                    sample.at_ms,
                    is_doubtful=sample.is_doubtful,
                    sharing=sample.sharing,
                )
                learned += 1
        return learned

    def among(
        self, device: str, keys: Iterable[str], sharing: DeviceSharing = DeviceSharing.UNSTATED
    ) -> dict[Pair, Observation]:
        """What is known of pairs whose both jobs are named, see `ObservedPairs.among`."""
        return self._observed.among(device, keys, sharing)

    def partners(
        self, device: str, keys: Collection[str], sharing: DeviceSharing = DeviceSharing.UNSTATED
    ) -> list[PairJob]:
        """Jobs that are not in a question and help to answer it, the most helpful first; at most `PARTNERS_MAX`.

        Args:
            device: Device type.
            keys: Of the jobs in the question.
            sharing: Those measured this way only; unstated = all.
        """
        found = self._observed.others(device, keys, PARTNERS_MAX, sharing)
        return [job for key in found if (job := self._partner(device.strip().lower(), key)) is not None]

    def _partner(self, device: str, key: str) -> PairJob | None:
        alone, job = self._alone.get((device, key)), self._jobs.get(key)
        if alone is not None:
            return dataclasses.replace(alone, job_id=f"measured {key}", measured_key=key)
        if job is None:
            return None
        return PairJob(job_id=f"measured {key}", settings=job.settings, graph_sha256=job.graph_sha256)

    def rows(self, device: str = "") -> list[MeasuredPair]:
        """The whole table by device type, keys and way of sharing.

        Args:
            device: This device type only.
        """
        return [
            MeasuredPair(
                device=name,
                pair=pair,
                seen=seen,
                victim=self._jobs.get(pair[0]),
                other=self._jobs.get(pair[1]),
                sharing=sharing,
            )
            for name, pair, sharing, seen in self._observed.all_of(device)
        ]

    def _describe(self, jobs: Mapping[str, MeasuredJob]) -> None:
        with self._lock:
            for key, job in jobs.items():
                self._jobs[key] = job
                self._jobs.move_to_end(key)
            while len(self._jobs) > JOBS_MAX:
                self._jobs.popitem(last=False)
