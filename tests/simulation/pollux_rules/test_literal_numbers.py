"""The Pollux rules on single jobs and six jobs, number by number as the artifact's engine gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_simulator.pollux_rules.batch_plan import iteration_s, split_batch
from cotenant_simulator.pollux_rules.cluster import ClusterShape, FreeGpus
from cotenant_simulator.pollux_rules.engine import INTERVAL_S
from cotenant_simulator.pollux_rules.entry_point import run_pollux_rules
from cotenant_simulator.pollux_rules.optimus import Optimus
from cotenant_simulator.pollux_rules.tiresias import Tiresias
from cotenant_simulator.pollux_rules.training_job import TrainingJob
from cotenant_simulator.pollux_rules.workload import SubmittedJob
from tests.support.cases import for_each
from tests.support.pollux_family import applications, family_folder, times_of, write_workload

CLUSTER = ClusterShape(16, 4)
SIX = (
    "deepspeech2-0,10,deepspeech2,6,320",
    "bert-1,20,bert,12,384",
    "ncf-2,30,ncf,1,32768",
    "cifar10-3,40,cifar10,16,4096",
    "deepspeech2-4,50,deepspeech2,6,320",
    "imagenet-5,60,imagenet,48,6400",
)
SIX_TIRESIAS = {
    "deepspeech2-0": 4222,
    "bert-1": 1664,
    "ncf-2": 107,
    "cifar10-3": 532,
    "deepspeech2-4": 4182,
    "imagenet-5": 21399,
}
SIX_OPTIMUS = {
    "deepspeech2-0": 3566,
    "bert-1": 4135,
    "ncf-2": 107,
    "cifar10-3": 2283,
    "deepspeech2-4": 3488,
    "imagenet-5": 19290,
}


def close(value: float) -> object:
    """The tables hold doubles; only the order of summing may differ."""
    return pytest.approx(value, rel=1e-9)


def run_of(tmp_path: Path, policy: str, *rows: str) -> dict[str, object]:
    return run_pollux_rules(write_workload(tmp_path / "w.csv", *rows), family_folder() / "profiles", policy)


def six_jobs() -> list[TrainingJob]:
    """The six jobs as they are submitted."""
    known = applications()
    rows = [row.split(",") for row in SIX]
    return [
        TrainingJob(SubmittedJob(name, int(submit), known[application], int(gpus), int(batch)), order)
        for order, (name, submit, application, gpus, batch) in enumerate(rows)
    ]


@for_each(
    ("application", "batch", "gpus", "expected"),
    [
        ("cifar10", 4096, 12, (341, 0, 4092)),
        ("cifar10", 2048, 6, (342, 0, 2052)),
        ("deepspeech2", 320, 6, (54, 0, 324)),
        ("bert", 384, 6, (10, 5, 360)),
        ("bert", 384, 12, (10, 2, 360)),
        ("ncf", 32768, 1, (16384, 1, 32768)),
        ("yolov3", 64, 4, (8, 1, 64)),
        ("imagenet", 6400, 41, (157, 0, 6437)),
    ],
)
def test_batches_are_split_as_published(application: str, batch: int, gpus: int, expected: tuple[int, ...]) -> None:
    plan = split_batch(applications()[application], batch, gpus)
    assert (plan.local_samples, plan.accumulations, plan.batch) == expected


@for_each(
    ("application", "gpus_by_node", "samples", "step_s", "sync_s"),
    [
        ("bert", (4, 4, 4), 10, 1.6308498630921047, 0.8743996213277182),
        ("bert", (4, 4, 2, 1, 1), 10, 1.725456917, 0.9757581278),
        ("imagenet", (4,) * 8, 200, 1.093251753, 0.09504730835),
        ("imagenet", (4,) * 12, 134, 0.7875689636, 0.1088450874),
        ("cifar10", (4, 2, 2, 2, 2), 341, 0.2872355895, 0.02253728473),
        ("deepspeech2", (4, 2, 2, 2, 2), 53, 1.794009843, 0.2690913265),
    ],
)
def test_step_times_are_interpolated_as_the_artifact_does(
    application: str, gpus_by_node: tuple[int, ...], samples: int, step_s: float, sync_s: float
) -> None:
    found = applications()[application].step_times.at(application, gpus_by_node, samples)
    assert found == (close(step_s), close(sync_s))


def test_shapes_are_rotated_and_not_sorted() -> None:
    times = applications()["bert"].step_times
    assert times.at("bert", (4, 4, 2, 2), 10) == times.at("bert", (2, 2, 4, 4), 10)
    assert times.at("bert", (4, 2, 4, 2), 10) != times.at("bert", (4, 4, 2, 2), 10)


def test_bert_alone_moves_on_as_published() -> None:
    """12 GPUs, batch 384, submitted at 70, seen at 120: every number of the worked example."""
    job = TrainingJob(SubmittedJob("bert", 70, applications()["bert"], 12, 384), 0)
    job.reallocate(FreeGpus(CLUSTER).take(12), 120)
    assert job.iteration_s == close(3.1437503466208776)
    assert job.application.gradient(360, 0) == (close(7625112247067.047), close(6112419613876275))
    assert job.application.gain(360, 0) == close(28.95384534146542)
    assert job.application.gain(360, 1) == close(29.328627926774935)
    progress = {}
    for now_s in range(120, 1_740, INTERVAL_S):
        job.advance(now_s, INTERVAL_S)
        progress[now_s + INTERVAL_S] = job.progress
    assert progress[180] == close(276.2990900907927)
    assert progress[240] == close(828.897270272378)
    assert progress[900] == close(6907.477252269815)
    assert progress[960] == close(7461.633478344232)
    assert progress[1740] == close(14738.39761690679)
    job.advance(1_740, INTERVAL_S)
    assert job.finished_s == 1_744


@pytest.mark.parametrize(
    ("policy", "row", "expected"),
    [
        ("tiresias", "bert,70,bert,12,384", 1674),
        ("optimus", "bert,70,bert,12,384", 1659),
        ("tiresias", "ncf,70,ncf,1,32768", 127),
    ],
)
def test_a_job_alone_completes_when_published(tmp_path: Path, policy: str, row: str, expected: int) -> None:
    assert list(times_of(run_of(tmp_path, policy, row)).values()) == [expected]


@pytest.mark.parametrize(("policy", "expected"), [("tiresias", SIX_TIRESIAS), ("optimus", SIX_OPTIMUS)])
def test_six_jobs_complete_when_published(tmp_path: Path, policy: str, expected: dict[str, int]) -> None:
    assert times_of(run_of(tmp_path, policy, *SIX)) == expected


def test_optimus_restarts_six_jobs_as_often_as_published(tmp_path: Path) -> None:
    rows = run_of(tmp_path, "optimus", *SIX)["jobs"]
    assert isinstance(rows, list)
    assert [row["restarts"] for row in rows] == [10, 5, 0, 3, 6, 3]


def test_the_first_decision_of_optimus_is_the_published_one() -> None:
    jobs, policy = six_jobs(), Optimus(CLUSTER)
    assert policy.counts(jobs) == [7, 4, 1, 4, 7, 41]
    first, second = (policy.step_s(jobs[0].application, 320, gpus) for gpus in (1, 2))
    assert (first, second) == (close(10.157880840763449), close(5.19583489177376))
    assert policy.step_s(jobs[2].application, 32_768, 1) == close(0.029598344115422948)
    places = policy.allocate(jobs, 60)
    assert [places[job.job_id] for job in jobs[:5]] == [
        ((3, 4), (4, 3)),
        ((1, 4),),
        ((0, 1),),
        ((2, 4),),
        ((5, 4), (6, 3)),
    ]
    assert places["imagenet-5"] == (*((node, 4) for node in range(7, 16)), (0, 3), (4, 1), (6, 1))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Optimus, [28.105409, 132.616139, 116505, 67.621214, 28.105409, 137.529391]),
        (Tiresias, [25.436038, 276.299090, 116505, 238.989326, 25.436038, 0]),
    ],
)
def test_six_jobs_are_as_far_after_a_minute_as_published(
    make: type[Optimus] | type[Tiresias], expected: list[float]
) -> None:
    jobs = six_jobs()
    places = make(CLUSTER).allocate(jobs, 60)
    for job in jobs:
        job.reallocate(places.get(job.job_id, ()), 60)
        job.advance(60, INTERVAL_S)
    assert [job.progress for job in jobs] == pytest.approx(expected, abs=1e-6)


def test_predicted_steps_of_one_gpu_always_accumulate() -> None:
    """For n = 1 also at the initial batch size, where the engine itself would not."""
    bert = applications()["bert"]
    assert split_batch(bert, 12, 1).accumulations == 0
    plan = split_batch(bert, 12, 1, accumulates_alone=True)
    assert (plan.local_samples, plan.accumulations) == (6, 1)
    assert Optimus(CLUSTER).step_s(bert, 12, 1) == iteration_s(bert, (1,), plan)
