"""From measured rows to learning tasks."""

import dataclasses
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from cotenant.profile_schema import PairRow, SoloRow
from predictor_service.errors import TrainingDataError
from predictor_service.learning.learning_task import ALL_DEVICES
from predictor_service.learning.learning_task_reader import (
    list_campaigns,
    list_devices,
    pool_learning_tasks,
    read_learning_task,
)
from predictor_service.learning.profile_files import MeasuredProfiles, read_profiles
from predictor_service.selection.targets import MEMORY, SLOWDOWN, SM_ACTIVITY, TARGETS, UTILIZATION, Target
from tests.support.invented_profiles import DEVICE, pair_row, pair_rows, solo_row, solo_rows, write_profiles

STANDIN = Path(__file__).resolve().parents[3] / "datasets" / "cpu_standin"


def profiles(solo: list[SoloRow], pairs: list[PairRow] | None = None) -> MeasuredProfiles:
    return MeasuredProfiles(name="invented", solo=tuple(solo), pairs=tuple(pairs or ()))


def test_every_row_is_either_in_the_problem_or_counted_with_its_reason() -> None:
    rows = [
        solo_row(run_id="kept"),
        solo_row(status="out_of_memory", step_ms_mean=None),
        solo_row(utilization_ratio=None),
        solo_row(device="Other"),
    ]
    read = read_learning_task(profiles(rows), UTILIZATION, DEVICE)
    assert read.learning_task.row_ids == ("kept",)
    assert read.excluded == {"another device type": 1, "no utilization measured": 1, "status out_of_memory": 1}


def test_published_features_are_split_by_prefix_and_kind_and_nulls_are_left_out() -> None:
    features = {"set.layers": 3, "graph.flops": 2.5, "set.activation": "relu", "set.unknown": None}
    job = read_learning_task(
        profiles([solo_row(features_json=json.dumps(features))]), MEMORY, DEVICE
    ).learning_task.jobs[0]
    assert (job.raw, job.graph) == ({"layers": 3.0}, {"flops": 2.5})
    assert job.labels["activation"] == "relu"
    assert (job.labels["mode"], job.labels["campaign"]) == ("train", "one")


def test_a_target_measured_alone_is_no_feature_of_the_problem_that_predicts_it() -> None:
    learning_task = read_learning_task(profiles(solo_rows()), UTILIZATION, DEVICE).learning_task
    assert all(dataclasses.astuple(job.solo) == (None, None, None, None) for job in learning_task.jobs)


def test_a_slowdown_row_carries_what_both_jobs_do_alone_averaged_over_repetitions() -> None:
    victim = solo_row(job_key="a", step_ms_mean=10.0)
    again = solo_row(job_key="a", step_ms_mean=12.0, utilization_ratio=None, step_ms_p95=20.0)
    other = solo_row(job_key="b", family="bee", architecture="bee_1", step_ms_mean=7.0)
    pair = pair_row(victim, other, slowdown_ratio=0.25)
    learning_task = read_learning_task(profiles([victim, again, other], [pair]), SLOWDOWN, DEVICE).learning_task
    assert learning_task.measured.tolist() == [0.25]
    assert learning_task.jobs[0].solo.step_ms == 11.0
    assert learning_task.jobs[0].solo.utilization_ratio == 0.5
    assert learning_task.others[0][0].solo.step_ms == 7.0
    assert learning_task.jobs[0].labels["share_mode"] == "time_slicing"
    assert learning_task.groups("family") == [frozenset({"ant", "bee"})]


def test_a_pair_is_never_joined_to_a_solo_row_of_another_campaign() -> None:
    victim, other = solo_row(job_key="a"), solo_row(job_key="b")
    elsewhere = [dataclasses.replace(row, campaign="two") for row in (victim, other)]
    read = read_learning_task(profiles(elsewhere, [pair_row(victim, other, slowdown_ratio=0.1)]), SLOWDOWN, DEVICE)
    assert len(read.learning_task) == 0
    assert read.excluded == {"a job has no solo row of the same campaign and device type": 1}


def test_a_pair_says_of_which_campaign_it_is_whatever_set_knows_its_jobs_alone() -> None:
    victim, other = solo_row(job_key="a"), solo_row(job_key="b")
    collected = [dataclasses.replace(row, campaign="collected") for row in (victim, other)]
    pairs = [pair_row(*jobs, slowdown_ratio=0.1) for jobs in ((victim, other), collected)]
    sets = [profiles([victim, other], pairs[:1]), profiles(collected, pairs[1:])]
    learning_task = pool_learning_tasks(sets, SLOWDOWN, DEVICE).learning_task
    assert [job.labels["campaign"] for job in learning_task.jobs] == ["one", "collected"]


def test_both_directions_of_a_pair_and_its_repetitions_share_one_group() -> None:
    one, two = solo_row(job_key="a"), solo_row(job_key="b")
    pairs = [pair_row(one, two, slowdown_ratio=0.1), pair_row(two, one, slowdown_ratio=0.3)]
    learning_task = read_learning_task(profiles([one, two], [*pairs, pairs[0]]), SLOWDOWN, DEVICE).learning_task
    assert len(set(learning_task.groups("random_pair"))) == 1
    with pytest.raises(ValueError, match="none of"):
        learning_task.groups("rows")


def test_a_subset_keeps_all_parts_of_its_rows_together() -> None:
    learning_task = read_learning_task(profiles(solo_rows()[:6]), MEMORY, DEVICE).learning_task.subset([4, 1])
    assert learning_task.row_ids == ("ant_1-8", "ant_0-16")
    assert [job.batch for job in learning_task.jobs] == [8, 16]
    assert len(learning_task.measured) == len(learning_task.others) == 2


def test_all_device_types_can_be_pooled() -> None:
    rows = profiles([solo_row(device="A"), solo_row(device="B"), solo_row(device="C", sm_activity_ratio=0.5)])
    assert list_devices(rows, MEMORY) == ["A", "B", "C"]
    assert list_devices(rows, SM_ACTIVITY) == ["C"]
    assert [job.device for job in read_learning_task(rows, MEMORY, ALL_DEVICES).learning_task.jobs] == ["A", "B", "C"]
    assert list_campaigns(rows, MEMORY, ALL_DEVICES) == ["one"]


@pytest.fixture(scope="module")
def own() -> MeasuredProfiles:
    """Our own measured set; reading it describes all its graphs, which takes seconds."""
    return read_profiles(STANDIN)


@pytest.mark.parametrize(
    "target", [target for target in TARGETS if target is not SM_ACTIVITY], ids=lambda target: target.quantity
)
def test_our_own_measured_set_becomes_problems_with_graph_features(own: MeasuredProfiles, target: Target) -> None:
    read = read_learning_task(own, target, "cpu-standin")
    rows = len(read.learning_task) + sum(read.excluded.values())
    assert rows == len(own.pairs if target is SLOWDOWN else own.solo)
    assert len(read.learning_task) > rows / 2
    assert all(job.graph["forward_flops"] > 0 and "roofline_ms" in job.graph for job in read.learning_task.jobs)


@pytest.mark.parametrize("name", ["solo", "pairs"])
def test_a_parquet_file_reads_the_same_as_its_csv_file(tmp_path: Path, name: str) -> None:
    solo = solo_rows()[:5]
    expected = read_profiles(write_profiles(tmp_path / "csv", solo, pair_rows(solo)))
    folder = tmp_path / "parquet"
    folder.mkdir()
    for kind, rows in (("solo", expected.solo), ("pairs", expected.pairs)):
        records = [dataclasses.asdict(row) for row in rows]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), folder / f"{kind}.parquet")
    found = read_profiles(folder / f"{name}.parquet")
    assert found.solo == expected.solo
    assert found.pairs == (expected.pairs if name == "pairs" else ())


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("absent.csv", None),
        ("empty.csv", b""),
        ("binary.csv", b"\xff\xfe\x00\x01"),
        ("other.csv", b"a,b\n1,2\n"),
        ("broken.parquet", b"PAR1 but not really"),
        ("short.csv", b"victim_job_key,slowdown_ratio\nx,1\n"),
    ],
)
def test_what_is_no_profile_is_refused_with_a_remedy(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is not None:
        write(path, content)
    with pytest.raises(TrainingDataError) as refusal:
        read_profiles(path)
    assert refusal.value.remedy


def test_a_folder_without_profiles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="neither solo nor pairs"):
        read_profiles(tmp_path)
