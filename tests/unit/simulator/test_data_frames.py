"""`cotenant_simulator.simulate`: data frames out, own policies in, and whatever is wrong said in words."""

from __future__ import annotations

import doctest
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pandas
import pytest

import cotenant_simulator
from cotenant_simulator import data_frames
from cotenant_simulator.comparison.options import Options
from cotenant_simulator.errors import InputError, PolicyFaultError
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Start
from scheduler_service.core.records import Reason
from scheduler_service.policies.fifo import Fifo
from scheduler_service.policies.ordering.waiting_list import decide_in_order
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound

WORKLOAD = "jobs = 8\n[arrival]\nmean_s = 20.0\n[[classes]]\nmean_s = 120.0\nstep_ms = 100.0\n"


@pytest.fixture
def frame() -> pandas.DataFrame:
    return pandas.DataFrame({"submit_time_s": [0, 1, 2], "duration_s": [600, 300, 60], "num_gpus": [1, 1, 1]})


@dataclass(frozen=True)
class LastFirst:
    """The newest job first."""

    shares_gpus: ClassVar[bool] = False

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        jobs = sorted(view.pending, key=lambda job: (-job.submitted_at_ms, job.request.job_id))
        return decide_in_order(jobs, ExclusiveRound(view).decide)


class Raising:
    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        raise ZeroDivisionError("0 / 0")


class Answering:
    """A policy that answers what it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, view: SchedulingView) -> Any:
        return self.answer


class WithoutDefaults:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    decide = LastFirst.decide


class Overbooking:
    """Every job on one GPU that is not there."""

    def decide(self, view: SchedulingView) -> Any:
        reason = Reason(code="STARTS_ALONE")
        return [
            Start(job_id=job.request.job_id, reason=reason, assignments=(), micro_batch_size=1) for job in view.pending
        ]


def test_the_examples_of_the_module_hold() -> None:
    found = doctest.testmod(data_frames)
    assert found.attempted > 6
    assert found.failed == 0


def test_a_drawn_workload_gives_frames_of_jobs_runs_and_figures(tmp_path: Path) -> None:
    file = tmp_path / "workload.toml"
    file.write_text(WORKLOAD)
    found = cotenant_simulator.simulate(file, ["fifo", "srtf"], cluster="1x2", seeds=[3, 5, 8])
    assert len(found.jobs) == 3 * 2 * 8
    assert found.runs[["seed", "policy"]].to_records(index=False).tolist() == [
        (seed, policy) for seed in (3, 5, 8) for policy in ("fifo", "srtf")
    ]
    means: Any = found.jobs.groupby(["seed", "policy"]).jct_s.mean()
    stated: Any = found.runs.set_index(["seed", "policy"]).jct_mean_s
    pandas.testing.assert_series_equal(means, stated.loc[means.index], check_names=False, atol=1e-5, rtol=0)
    stay: Any = found.policies.query("figure == 'jct_mean_s'").set_index("policy")
    assert stay.loc["fifo", ["ratio", "ratio_low", "ratio_high", "difference"]].tolist() == [1, 1, 1, 0]
    assert stay.loc["srtf", "low"] < stay.loc["srtf", "mean"] < stay.loc["srtf", "high"]


def test_an_own_class_is_a_policy_by_its_name(frame: pandas.DataFrame) -> None:
    found = cotenant_simulator.simulate(frame, ["fifo", LastFirst, Fifo(overtaking=True)], cluster="1x1")
    assert found.runs.policy.tolist() == ["fifo", "LastFirst", "Fifo"]
    ended: Any = found.jobs.pivot(index="job_id", columns="policy", values="finished_at_ms")
    assert ended.LastFirst.idxmax() == "job-1"
    assert ended.fifo.idxmax() == "job-2"
    assert ended.Fifo.tolist() == ended.fifo.tolist()


def test_seeds_and_settings_may_be_numbers_of_numpy(frame: pandas.DataFrame) -> None:
    settings: dict[str, Any] = {
        "cluster": "1x2",
        "gpu_counts": list(numpy.array([2, 1])),
        "restart_s": numpy.float32(5),
    }
    found = cotenant_simulator.simulate(frame, "fifo", seeds=numpy.arange(2), **settings)
    assert found.runs.seed.tolist() == [0, 1]
    two: Any = numpy.int64(2)
    assert len(cotenant_simulator.simulate(frame, "fifo", seeds=two, **settings).runs) == 2


def test_warnings_are_in_the_answer(frame: pandas.DataFrame) -> None:
    found = cotenant_simulator.simulate(frame, "sjf,tetris", cluster="1x4", seeds=2)
    told = "\n".join(found.warnings)
    assert "no job waited for a GPU under any policy" in told
    assert "the 2 seeds gave one and the same outcome" in told


def test_jobs_that_never_ran_have_missing_times(frame: pandas.DataFrame) -> None:
    wide = pandas.concat([frame, pandas.DataFrame({"submit_time_s": [3], "duration_s": [9], "num_gpus": [64]})])
    found = cotenant_simulator.simulate(wide, "fifo", cluster="1x1", parameters={"fifo": {"overtaking": True}})
    assert found.jobs.finished_at_ms.isna().tolist() == [False, False, False, True]
    assert any("1 of 4 jobs did not finish" in warning for warning in found.warnings)


def test_a_frame_need_not_be_in_order_and_may_have_names_of_any_script() -> None:
    frame = pandas.DataFrame(
        {
            "job_id": ["ünïcode 任务", 'a,b\n"c"', "plain"],
            "submit_time_s": [20.5, 0, 10],
            "duration_s": [5, 5, 5],
            "num_gpus": [1, 1, 1],
        }
    )
    found = cotenant_simulator.simulate(frame, "fifo", cluster="1x1")
    assert found.jobs.job_id.tolist() == ['job-a,b\n"c"', "job-plain", "job-ünïcode 任务"]
    assert found.jobs.submitted_at_ms.tolist() == [0, 10_000, 20_500]
    one = cotenant_simulator.simulate(frame[:1], ["fifo", "sjf"], cluster="1x1", seeds=2)
    assert len(one.jobs) == 4


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"duration_s": -1}, "the data frame, iloc[0]: duration_s is -1, outside 0"),
        ({"duration_s": math.nan}, "the data frame, iloc[0]: duration_s is '', not a number"),
        ({"duration_s": math.inf}, "duration_s is inf, outside"),
        ({"submit_time_s": -5}, "submit_time_s is -5, outside 0"),
        ({"submit_time_s": "yesterday"}, "submit_time_s is 'yesterday', not a number"),
        ({"num_gpus": 0}, "num_gpus is 0, outside 1"),
        ({"num_gpus": 10**9}, "num_gpus is 1000000000, outside 1 to 100000"),
        ({"num_gpus": 1.5}, "num_gpus is 1.5, not a whole number"),
        ({"job_id": "same"}, "the data frame, iloc[1]: job 'job-same' stands in iloc[0] too"),
    ],
)
def test_a_bad_value_is_named_with_its_row(changes: dict[str, Any], complaint: str, frame: pandas.DataFrame) -> None:
    with pytest.raises(InputError) as caught:
        cotenant_simulator.simulate(frame.assign(**changes), "fifo")
    assert complaint in str(caught.value)


def test_a_column_that_is_there_twice_is_one_of_the_frame_and_not_of_a_row(frame: pandas.DataFrame) -> None:
    twice = pandas.concat([frame, frame[["num_gpus"]]], axis=1)
    with pytest.raises(InputError, match=r"^the data frame: has the column num_gpus twice"):
        cotenant_simulator.simulate(twice, "fifo")


def test_a_frame_without_jobs_or_with_other_columns_is_refused(frame: pandas.DataFrame) -> None:
    with pytest.raises(InputError, match="the data frame: holds no job that needs a GPU"):
        cotenant_simulator.simulate(frame[:0], "fifo")
    with pytest.raises(InputError, match="the data frame: is of no known format; its columns are a, job_id; known are"):
        cotenant_simulator.simulate(pandas.DataFrame({"a": [1]}), "fifo")
    needed = "a job list needs the columns submit_time_s, duration_s and num_gpus"
    with pytest.raises(InputError, match=f"the data frame: is of no known format.*; {needed}"):
        cotenant_simulator.simulate(pandas.DataFrame(), "fifo")


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (Raising, "policy Raising failed: ZeroDivisionError: 0 / 0 (simulator/test_data_frames.py:"),
        (Answering(None), "policy Answering failed: TypeError: 'NoneType' object is not iterable"),
        (Answering([42]), "policy Answering failed: TypeError: decide(view) returned 42, which is no decision"),
        (Answering(["j0"]), "returned 'j0', which is no decision"),
    ],
)
def test_a_policy_that_raises_or_answers_nonsense_is_named(
    policy: Any, complaint: str, frame: pandas.DataFrame
) -> None:
    with pytest.raises(PolicyFaultError) as caught:
        cotenant_simulator.simulate(frame, ["fifo", policy], cluster="1x1")
    assert complaint in str(caught.value)


def test_decisions_that_are_impossible_are_counted_and_the_first_is_shown(frame: pandas.DataFrame) -> None:
    found = cotenant_simulator.simulate(frame, Overbooking, cluster="1x1")
    told = "\n".join(found.warnings)
    assert "of its decisions were impossible and not carried out, the first: Start about job-0 at 0 s: " in told
    assert "3 of 3 jobs did not finish" in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"trace": None}, "the trace is NoneType, neither the path of a file nor a data frame"),
        ({"trace": "nowhere.csv"}, "nowhere.csv: is no file; name a trace"),
        ({"policies": []}, "0 policies are named; name 1 to 100"),
        ({"policies": " , "}, "0 policies are named"),
        ({"policies": "fastest"}, "there is no policy 'fastest'"),
        ({"policies": [None]}, "None is neither the name of a policy nor a class with decide(view)"),
        ({"policies": [dict]}, "is neither the name of a policy nor a class"),
        ({"policies": 7}, "7 is neither the name of a policy"),
        ({"policies": [WithoutDefaults]}, "policy WithoutDefaults cannot be built: TypeError: "),
        ({"policies": [Answering([]), Answering([1])]}, "two policies are called Answering; rename"),
        ({"seeds": 0}, "0 are not 1 to 1,000 seeds"),
        ({"seeds": -1}, "-1 are not 1 to 1,000 seeds"),
        ({"seeds": 10**9}, "1000000000 are not 1 to 1,000 seeds"),
        ({"seeds": 2.5}, "seeds is 2.5, neither a number of seeds nor a list"),
        ({"seeds": True}, "seeds is True, neither"),
        ({"seeds": [True]}, "seeds holds True, not a whole number"),
        ({"seeds": [1, -1]}, "seeds holds -1, not a whole number from 0"),
        ({"seeds": "1,2"}, "seeds is '1,2', neither"),
        ({"speed": 3}, "there is no argument 'speed'; there are cluster, predictions"),
        ({"cluster": (2, 4)}, "cluster is (2, 4), not a text such as 4x8"),
        ({"cluster": "huge"}, "cluster 'huge' is no cluster; write NODESxGPUS"),
        ({"predictions": 0.3}, "predictions is 0.3, not a text such as oracle or noise:0.3"),
        ({"predictions": "best"}, "predictions 'best' are not known; write oracle"),
        ({"max_slowdown": math.nan}, "max_slowdown is nan, not a number from 0 to 1e+06"),
        ({"max_slowdown": -1}, "max_slowdown is -1, not a number from 0"),
        ({"share": "maybe"}, "share is 'maybe', not never, safe or any"),
        ({"gpu_counts": 4}, "gpu_counts is 4, not e.g. [1, 2, 4, 8]"),
        ({"gpu_counts": [0]}, "gpu_counts holds something else than whole numbers from 1 to 100,000"),
        ({"speedup_power": 2}, "speedup_power is 2, not a number from 0 to 1"),
        ({"parameters": {"sjf": {}}}, "parameters are for 'sjf', which is none of fifo"),
        ({"parameters": {"fifo": {"speed": 1}}}, "policy fifo has no parameter 'speed'"),
        ({"parameters": {"fifo": 3}}, "parameters is {'fifo': 3}, not a dictionary for each policy"),
        ({"measured": 3}, "measured is 3, not the path of a folder"),
        ({"profiles": "."}, "is of the format elasticflow-itp, which has no profiles"),
    ],
)
def test_a_wrong_argument_is_named_with_its_remedy(
    arguments: dict[str, Any], complaint: str, frame: pandas.DataFrame
) -> None:
    with pytest.raises(InputError) as caught:
        cotenant_simulator.simulate(**{"trace": frame, "policies": "fifo", **arguments})
    assert complaint in str(caught.value)


def test_every_option_has_the_name_of_a_flag() -> None:
    from cotenant_simulator.commands.simulate import simulate

    flags = {parameter.name for parameter in simulate.params} | {"parameters"}
    assert set(Options.__dataclass_fields__) <= flags


def test_a_notebook_is_offered_what_simulates() -> None:
    assert {"Comparison", "simulate"} <= set(dir(cotenant_simulator))
