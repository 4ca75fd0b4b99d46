"""The pair table: what was measured of pairs, and which other jobs a question needs so that it informs other pairs.

A job that a finished one slowed down will be slowed down by the next one too. So a question about pairs is answered
together with jobs that are not in it but were measured here: first those measured with a job of the question, then
those that were measured most, since what is wrong about a whole device type shows in any pair.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from predictor_service.inference.observed_pairs import Observation, ObservedPairs, Pair
from predictor_service.inference.records import PairJob
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.profile_store.measurement_window import MeasuredJob, StoredMeasurementWindow
from predictor_service.profile_store.pair_samples import PairSamples

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
    """

    device: str
    pair: Pair
    seen: Observation
    victim: MeasuredJob | None
    other: MeasuredJob | None


class PairTable:
    """Measured pairs of all device types; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observed = ObservedPairs()
        self._samples = PairSamples()
        self._jobs: OrderedDict[str, MeasuredJob] = OrderedDict()

    def learn_outcomes(self, joined: Iterable[tuple[PredictionEntry, Mapping[str, Any]]]) -> None:
        """Folds in outcomes of pairs, see `ObservedPairs.learn`."""
        self._observed.learn(joined)

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
                    sample.device, *keys, sample.slowdown_ratio, sample.at_ms, is_doubtful=sample.is_doubtful
                )
                learned += 1
        return learned

    def among(self, device: str, keys: Iterable[str]) -> dict[Pair, Observation]:
        """What is known of pairs whose both jobs are named."""
        return self._observed.among(device, keys)

    def partners(self, device: str, keys: Collection[str]) -> list[PairJob]:
        """Jobs that are not in a question and help to answer it, the most helpful first; at most `PARTNERS_MAX`.

        Args:
            device: Device type.
            keys: Of the jobs in the question.
        """
        found = self._observed.others(device, keys, PARTNERS_MAX)
        return [
            PairJob(job_id=f"measured {key}", settings=job.settings, graph_sha256=job.graph_sha256)
            for key in found
            if (job := self._jobs.get(key)) is not None
        ]

    def rows(self, device: str = "") -> list[MeasuredPair]:
        """The whole table by device type and keys.

        Args:
            device: This device type only.
        """
        return [
            MeasuredPair(
                device=name, pair=pair, seen=seen, victim=self._jobs.get(pair[0]), other=self._jobs.get(pair[1])
            )
            for name, pair, seen in self._observed.all_of(device)
        ]

    def _describe(self, jobs: Mapping[str, MeasuredJob]) -> None:
        with self._lock:
            for key, job in jobs.items():
                self._jobs[key] = job
                self._jobs.move_to_end(key)
            while len(self._jobs) > JOBS_MAX:
                self._jobs.popitem(last=False)
