"""How soon slowdowns are predicted right on an unmeasured device type, by the outcomes that agents report.

The predictor has no model of the device, so that it starts from the graphs alone (our own jobs) or from what jobs do
alone (our own and, where COTENANT_SHARED_DATA is set, alnair's). Light campaigns are alnair's jobs that want less than
three quarters of the device, as measured, and all of its pairs with a fifth of each measured ln(1 + slowdown). Every
job is seen alone once. Then co-locations are drawn one after the other; each gives one window per job, its measured
slowdown with the noise of a window, and takes the way that windows of agents take once they are stored. Errors are
those of all measured pairs, of the pairs that were not observed yet, of pairs asked about by themselves as a small
cluster does (what else was measured has to join the question), of the same pairs if an observation taught nothing
beyond itself, and of an answer that no job slows another down, after some numbers of outcomes; means over
COTENANT_BENCHMARK_SEEDS (default 10) orders. Minutes are computed: shared devices times the agents' least reports,
two windows every five minutes. "errors_of_other_starts" says what each world errs before any window if another share
than `START_SHARE` of what two jobs want beyond the whole device were expected, "share_of_least_worst_error" which share
each set would choose: the one whose larger error over that of no slowdown, of the set and of a fifth of its
interference, is least. Our own chose `START_SHARE`; alnair judges it. Takes two minutes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from cotenant.job_settings import JobSettings
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.features.pair_features import SoloFigures, excess_slowdowns
from predictor_service.importers.alnair import import_alnair
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.pair_correction import IndexArray
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import PairJob, PairsAnswer, PairsQuestion
from predictor_service.learning.learning_task import BoolArray, FloatArray, JobFacts
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import MeasuredProfiles, read_profiles
from predictor_service.profile_store.measurement_window import MeasuredJob, MeasurementWindow, StoredMeasurementWindow
from predictor_service.registry.served_version import ServedVersion
from predictor_service.selection.targets import SLOWDOWN
from predictor_service.table_methods.slowdown_pairs import name_job

COUNTS: Final = (0, 10, 30, 100)
DEVICE: Final = "NVIDIA L4"
"""A device type of the catalogue that no data set measures."""
WINDOW_NOISE: Final = 0.05
"""Standard deviation of ln(1 + slowdown) between windows of one pair."""
SHARED_DEVICES: Final = 8
"""For the minutes that are computed."""
ASKED_IN_TWOS: Final = 40
SMALL_DEMAND: Final = 0.75
LIGHT_SHARE: Final = 0.2
STARTS: Final = (0.0, 0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.75, 1.0)
_WINDOW_MINUTES: Final = 5
_STEPS: Final = 1_000
_ALONE_MS: Final = 100_000
_MEMORY_BYTES: Final = 1 << 30
_DIGITS: Final = 4
_OWN_SET: Final = Path(__file__).resolve().parents[1] / "datasets" / "cpu_standin"
Outcome = tuple[int, int]
"""(victim, other) by index."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """Jobs and what they really do to one another.

    Attributes:
        jobs: As they are asked about.
        truth: Slowdown of victim by other, NaN where it was not measured, shape (jobs, jobs).
        graphs: Descriptions by hash; empty where the jobs are known alone.
    """

    jobs: Sequence[PairJob]
    truth: FloatArray
    graphs: Mapping[str, GraphDescription]


class _NoVersion:
    """Nothing was ever trained."""

    def current(self) -> ServedVersion | None:
        return None


@dataclass(frozen=True, slots=True)
class ReadGraphs:
    """Graphs that were described when the data set was read; their bytes are their hashes."""

    graphs: Mapping[str, GraphDescription]

    def describe(self, data: bytes, bindings: Mapping[str, int] | None = None) -> GraphDescription:
        """Returns what was read."""
        return self.graphs[data.decode("ascii")]


def main() -> dict[str, object]:
    """Streams outcomes in every world."""
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    seeds = range(int(os.environ.get("COTENANT_BENCHMARK_SEEDS", "10")))
    own = read_own_world(_OWN_SET)
    worlds = {"cpu_standin, graphs alone": own, "cpu_standin, known alone": read_known_world(_OWN_SET)}
    if root:
        alnair = read_alnair_world(Path(root) / "alnair")
        worlds["alnair, known alone"] = alnair
        worlds["alnair, jobs of little demand"] = keep_small_jobs(alnair, SMALL_DEMAND)
        worlds["alnair, a fifth of the interference"] = lighten(alnair, LIGHT_SHARE)
    figures: dict[str, object] = {name: stream_outcomes(world, seeds) for name, world in worlds.items()}
    known = {name: world for name, world in worlds.items() if not world.graphs}
    known["cpu_standin, a fifth of the interference"] = lighten(worlds["cpu_standin, known alone"], LIGHT_SHARE)
    figures["errors_of_other_starts"] = {
        str(share): {name: expect_share(world, share) for name, world in known.items()} for share in STARTS
    }
    figures["share_of_least_worst_error"] = {
        name: choose_start(world) for name, world in known.items() if name.endswith(", known alone")
    }
    figures["left_out"] = [] if root else ["alnair: COTENANT_SHARED_DATA is not set"]
    return figures


def read_own_world(folder: Path) -> World:
    """Our own measured pairs; of the jobs nothing is known but graphs and settings."""
    profiles = read_profiles(folder)
    facts, truth = _read_truth(profiles)
    graph_of = {row.job_key: row.graph_sha256 or "" for row in profiles.solo}
    jobs = [
        PairJob(job_id=f"job{place}", settings=_settings(job), graph_sha256=graph_of[job.job_key])
        for place, job in enumerate(facts)
    ]
    return World(jobs=jobs, truth=truth, graphs=profiles.graphs)


def read_known_world(folder: Path) -> World:
    """Our own measured pairs, with the jobs' figures alone known."""
    return known_world(read_profiles(folder))


def read_alnair_world(folder: Path) -> World:
    """Measured pairs under MPS, with step time and utilization alone known; memory was not published and is made up."""
    imported = import_alnair(folder)
    return known_world(MeasuredProfiles(name="alnair", solo=tuple(imported.solo), pairs=tuple(imported.pairs)))


def keep_small_jobs(world: World, utilization_max: float) -> World:
    """Only the jobs that want less than so much of the device."""
    places = [place for place, job in enumerate(world.jobs) if (job.known_utilization_ratio or 0.0) < utilization_max]
    jobs = [world.jobs[place] for place in places]
    return dataclasses.replace(world, jobs=jobs, truth=world.truth[np.ix_(places, places)])


def lighten(world: World, share: float) -> World:
    """The same jobs with a share of each measured ln(1 + slowdown)."""
    return dataclasses.replace(world, truth=np.expm1(share * np.log1p(world.truth)))


def known_world(profiles: MeasuredProfiles, device: str = "", campaign: str | None = None) -> World:
    """Measured pairs with the figures of their jobs alone; what a set lacks is made up: memory, and full utilization.

    Args:
        profiles: A measured set.
        device: Type by the name of the rows; empty = the first one.
        campaign: None = all.
    """
    facts, truth = _read_truth(profiles, device, campaign)
    jobs = [
        PairJob(
            job_id=f"job{place}",
            settings=JobSettings(global_batch_size=job.batch),
            graph_sha256=name_graph(name_job(job)),
            known_step_ms=job.solo.step_ms,
            known_utilization_ratio=1.0 if job.solo.utilization_ratio is None else job.solo.utilization_ratio,
            known_memory_bytes=job.solo.memory_bytes or _MEMORY_BYTES,
        )
        for place, job in enumerate(facts)
    ]
    return World(jobs=jobs, truth=truth, graphs={})


def expect_share(world: World, share: float) -> float:
    """Mean error before any window if so much of what two jobs want beyond the whole device were expected of them."""
    count = len(world.jobs)
    figures = SoloFigures(
        utilization_ratio=np.array([job.known_utilization_ratio or 0.0 for job in world.jobs]),
        step_ms=np.array([job.known_step_ms or 0.0 for job in world.jobs]),
        memory_bytes=np.array([float(job.known_memory_bytes or 0) for job in world.jobs]),
        input_wait_ratio=np.zeros(count),
    )
    victim, other = (axis.reshape(-1) for axis in np.indices((count, count), dtype=np.intp))
    expected = share * excess_slowdowns(figures, victim, other).reshape(count, count)
    return round(_error(expected, world.truth, np.isfinite(world.truth)), _DIGITS)


def choose_start(world: World) -> float:
    """Of `STARTS` the share whose worse error, as it is and with a fifth of the interference, is least.

    Errors count over those of an answer that no job slows another down.
    """
    worlds = (world, lighten(world, LIGHT_SHARE))
    return min(STARTS, key=lambda share: max(expect_share(each, share) / expect_share(each, 0.0) for each in worlds))


def name_graph(name: str) -> str:
    """A hash for a job of which no graph is published."""
    return hashlib.sha256(name.encode()).hexdigest()


def _read_truth(
    profiles: MeasuredProfiles, device: str = "", campaign: str | None = None
) -> tuple[list[JobFacts], FloatArray]:
    """Distinct jobs of measured pairs, and the mean slowdown of each ordered pair."""
    device = device or sorted({row.device for row in profiles.pairs})[0]
    learning_task = read_learning_task(profiles, SLOWDOWN, device, campaign).learning_task
    pairs = [
        (job, others[0], float(measured))
        for job, others, measured in zip(learning_task.jobs, learning_task.others, learning_task.measured, strict=True)
        if len(others) == 1
    ]
    facts = {name_job(job): job for victim, other, _ in pairs for job in (victim, other)}
    place = {name: index for index, name in enumerate(sorted(facts))}
    total, count = np.zeros((len(place), len(place))), np.zeros((len(place), len(place)))
    for victim, other, measured in pairs:
        at = place[name_job(victim)], place[name_job(other)]
        total[at] += measured
        count[at] += 1.0
    truth = np.where(count > 0, total / np.maximum(count, 1.0), np.nan)
    return [facts[name] for name in sorted(facts)], truth


def _settings(job: JobFacts) -> JobSettings:
    mode = job.labels["mode"]
    return JobSettings(
        global_batch_size=job.batch,
        mode=mode,
        precision=job.precision,
        optimizer="sgd" if mode == "infer" else job.optimizer,
        input_wait_ratio=job.input_wait_ratio,
    )


def stream_outcomes(world: World, seeds: Sequence[int]) -> dict[str, object]:
    """Streams outcomes in several orders.

    Args:
        world: Measured slowdowns of all pairs.
        seeds: One order each.

    Returns:
        Jobs, ordered pairs and, by number of outcomes, minutes, errors and intervals as means over the orders.
    """
    library = GraphLibrary(ReadGraphs(world.graphs), None)
    for name in sorted(world.graphs):
        library.describe(name.encode("ascii"), {})
    orders = [list(_stream(Predictor(library, _NoVersion()), world, seed)) for seed in seeds]
    names = orders[0][0]
    return {
        "jobs": len(world.jobs),
        "pairs": int(np.isfinite(world.truth).sum()),
        "after_outcomes": {
            str(count): {
                "minutes_computed": count * _WINDOW_MINUTES / (2 * SHARED_DEVICES),
                **{name: _mean([order[place][name] for order in orders]) for name in names},
            }
            for place, count in enumerate(COUNTS)
        },
    }


def _mean(values: Sequence[float]) -> float | None:
    """Over the orders that say anything: once every pair was observed, there is no error of the others."""
    known = [value for value in values if np.isfinite(value)]
    return round(float(np.mean(known)), _DIGITS) if known else None


def _stream(predictor: Predictor, world: World, seed: int) -> Iterator[dict[str, float]]:
    """Yields figures at each of `COUNTS`."""
    question = PairsQuestion(device=DEVICE, jobs=world.jobs)
    prior = predictor.predict_pairs(question)
    random = np.random.default_rng(seed)
    outcomes = _draw_outcomes(world, random)
    known = np.argwhere(np.isfinite(world.truth))
    asked = random.permutation(known[known[:, 0] != known[:, 1]])[:ASKED_IN_TWOS]
    ids = itertools.count(1)
    predictor.learn_windows(_window(world, (place, place), None, next(ids)) for place in range(len(world.jobs)))
    seen: dict[Outcome, list[float]] = {}
    for count in COUNTS:
        while sum(len(values) for values in seen.values()) < count:
            victim, other = next(outcomes)
            noise = WINDOW_NOISE * random.standard_normal()
            slowdown_ratio = float((1.0 + world.truth[victim, other]) * np.exp(noise) - 1.0)
            seen.setdefault((victim, other), []).append(slowdown_ratio)
            predictor.learn_windows([_window(world, (victim, other), slowdown_ratio, next(ids))])
        yield {
            **_score(world, prior, predictor.predict_pairs(question), seen),
            **_score_in_twos(predictor, world, prior, seen, asked),
        }


def _draw_outcomes(world: World, random: np.random.Generator) -> Iterator[Outcome]:
    """Co-locations in a drawn order, again and again; both jobs of each report."""
    known = np.isfinite(world.truth)
    pairs = np.argwhere(np.triu(known | known.T))
    while True:
        for first, second in random.permutation(pairs):
            for victim, other in dict.fromkeys(((int(first), int(second)), (int(second), int(first)))):
                if known[victim, other]:
                    yield victim, other


def _window(world: World, pair: Outcome, slowdown_ratio: float | None, number: int) -> StoredMeasurementWindow:
    """What an agent measured of one job co-located with another one; None = alone."""
    victim, other = (
        MeasuredJob(graph_sha256=world.jobs[place].graph_sha256, settings=world.jobs[place].settings) for place in pair
    )
    return StoredMeasurementWindow(
        window=MeasurementWindow(
            window_id=f"{number:032x}",
            campaign="collected_00000000",
            device=DEVICE,
            job=victim,
            others=() if slowdown_ratio is None else (other,),
            micro_batch_size=victim.settings.global_batch_size,
            steps=_STEPS,
            window_ms=round(_ALONE_MS * (1.0 + (slowdown_ratio or 0.0))),
        )
    )


def _score_in_twos(
    predictor: Predictor, world: World, prior: PairsAnswer, seen: Mapping[Outcome, Sequence[float]], asked: IndexArray
) -> dict[str, float]:
    """Errors of pairs that are asked about by themselves: the jobs they were measured with have gone."""
    errors, overridden = [], []
    for victim, other in asked.tolist():
        answer = predictor.predict_pairs(PairsQuestion(device=DEVICE, jobs=[world.jobs[victim], world.jobs[other]]))
        truth = world.truth[victim, other]
        errors.append(abs(float(answer.slowdown_ratio[0, 1]) - truth))
        values = seen.get((victim, other), (float(prior.slowdown_ratio[victim, other]),))
        overridden.append(abs(float(np.mean(values)) - truth))
    return {"mae_in_twos": float(np.mean(errors)), "mae_in_twos_if_only_overridden": float(np.mean(overridden))}


def _score(
    world: World, prior: PairsAnswer, answer: PairsAnswer, seen: Mapping[Outcome, Sequence[float]]
) -> dict[str, float]:
    known = np.isfinite(world.truth)
    unseen = known.copy()
    overridden = prior.slowdown_ratio.astype(np.float64)
    for pair, values in seen.items():
        unseen[pair] = False
        overridden[pair] = np.mean(values)
    inside = (answer.lower <= world.truth) & (world.truth <= answer.upper)
    return {
        "mae_if_nobody_slows_anybody": _error(np.zeros_like(overridden), world.truth, known),
        "observed_share": float(1.0 - unseen.sum() / known.sum()),
        "mae": _error(answer.slowdown_ratio, world.truth, known),
        "mae_unobserved": _error(answer.slowdown_ratio, world.truth, unseen),
        "mae_if_only_overridden": _error(overridden, world.truth, known),
        "mae_unobserved_of_the_start": _error(prior.slowdown_ratio, world.truth, unseen),
        "coverage_90_ratio": float(inside[known].mean()),
        "coverage_90_unobserved_ratio": float(inside[unseen].mean()) if unseen.any() else np.nan,
        "width_90_mean": float((answer.upper - answer.lower)[known].mean()),
    }


def _error(predicted: np.ndarray[tuple[int, ...], np.dtype[np.floating]], truth: FloatArray, rows: BoolArray) -> float:
    return float(np.abs(predicted - truth)[rows].mean()) if rows.any() else np.nan
