"""A wait in milliseconds lasts as long on every device: a step is the computing and the wait, and its share follows."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from cotenant.device_calibration import DeviceCalibration
from cotenant.job_settings import JobSettings
from predictor_service.features.anchor_networks import STANDIN_ANCHORS, AnchorNetwork, read_anchor_graph
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.observed_jobs import line_key
from predictor_service.inference.pair_table import read_alone, write_alone
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion, Level, PairJob, PairsQuestion, RiskQuestion
from predictor_service.outcome_journal import PredictionEntry
from tests.support.calibrations import anchor_of, calibration
from tests.support.cases import for_each
from tests.support.measured_dataset import DEVICE, graphs
from tests.support.predictor_service import open_predictor

BATCH = 64
JOB = JobSettings(global_batch_size=BATCH, optimizer="adam")
UNTRAINED = "NVIDIA H200"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return open_predictor()


def waiting(wait_ms: float, settings: JobSettings = JOB) -> JobSettings:
    return dataclasses.replace(settings, input_wait_ms=wait_ms)


def sharing(predictor: Predictor, wait_ms: float) -> JobSettings:
    """The same wait as models know it: as a share of the step on the device type."""
    step_ms = ask(predictor, JOB).step_ms.value + wait_ms
    return dataclasses.replace(JOB, input_wait_ratio=round(wait_ms / step_ms, 6))


def ask(
    predictor: Predictor,
    settings: JobSettings,
    device: str = DEVICE,
    found: DeviceCalibration | None = None,
    **fields: Any,
) -> JobAnswer:
    graph = graphs()["wide"]
    return predictor.predict_job(
        JobQuestion(settings=settings, device=device, onnx_graph=graph, calibration=found, **fields)
    )


def slowed(predictor: Predictor, ratio: float) -> DeviceCalibration:
    """A device on which all anchors take so many times what is known of its type."""

    def anchor_step_ms(network: AnchorNetwork) -> float:
        settings = JobSettings(global_batch_size=network.batch_size, optimizer=network.optimizer)
        question = JobQuestion(settings=settings, device=DEVICE, onnx_graph=read_anchor_graph(network.network))
        return ratio * predictor.predict_job(question).step_ms.value

    anchors = tuple(anchor_of(each, step_ms=anchor_step_ms(each)) for each in STANDIN_ANCHORS)
    return dataclasses.replace(calibration(device=DEVICE), anchors=anchors)


@for_each("wait_ms", [1e-6, 0.3, 18.0, 3_600_000.0])
@for_each("device", [DEVICE, UNTRAINED])
@for_each("mode", ["train", "infer"])
def test_a_step_is_the_wait_and_what_the_job_computes_without_one_or_somewhat_more(
    predictor: Predictor, device: str, wait_ms: float, mode: str
) -> None:
    job = dataclasses.replace(JOB, mode=mode)
    busy, found = ask(predictor, job, device), ask(predictor, waiting(wait_ms, job), device)
    ratio = (found.step_ms.value - wait_ms) / busy.step_ms.value
    assert ratio == pytest.approx(1.0, abs=1e-6) if device == UNTRAINED else 0.9999 < ratio < 1.5001
    expected = [wait_ms + ratio * value for value in busy.step_ms[:3]]
    assert found.step_ms[:3] == pytest.approx(expected)
    assert found.step_ms.lower >= wait_ms
    share = found.utilization_ratio
    assert 0 <= share.lower <= share.value <= share.upper <= 1
    assert found.job_key != busy.job_key


def test_a_step_and_a_memory_are_those_of_the_share_that_the_wait_is_there(predictor: Predictor) -> None:
    timed, shared = ask(predictor, waiting(18.0)), ask(predictor, sharing(predictor, 18.0))
    assert timed.memory_bytes == shared.memory_bytes
    assert timed.step_ms.value == pytest.approx(shared.step_ms.value), "it learned what is computed after a wait"
    assert timed.utilization_ratio.value == pytest.approx(shared.utilization_ratio.value, rel=0.15)


@for_each("speed", [1 / 3, 1.0, 3.0])
@for_each("wait_ms", [0.3, 18.0, 3_000.0])
def test_the_device_is_busy_for_the_part_of_the_predicted_step_that_the_job_does_not_wait(
    predictor: Predictor, speed: float, wait_ms: float
) -> None:
    found = slowed(predictor, speed)
    busy, timed = ask(predictor, JOB, found=found), ask(predictor, waiting(wait_ms), found=found)
    computes = 1 - wait_ms / timed.step_ms.value
    assert timed.utilization_ratio.value == pytest.approx(computes * busy.utilization_ratio.value)


def held_up(predictor: Predictor, share: float, head_start_ms: float) -> DeviceCalibration:
    """A device of which a job gets so much, and after a wait some more."""
    found = slowed(predictor, 1 / share)
    anchors = tuple(dataclasses.replace(each, utilization_ratio=share) for each in found.anchors)
    return dataclasses.replace(found, anchors=anchors, head_start_ms=head_start_ms)


@for_each("share", [1 / 3, 2 / 3])
@for_each("wait_ms", [0.3, 6.0, 18.0, 3_000.0])
def test_a_head_start_shortens_a_step_and_leaves_what_it_needs_of_the_device(
    predictor: Predictor, share: float, wait_ms: float
) -> None:
    plain, ahead = (held_up(predictor, share, head_start_ms) for head_start_ms in (0.0, 2.0))
    settings = (waiting(wait_ms), sharing(predictor, wait_ms))
    for job in settings:
        before, after = (ask(predictor, job, found=found) for found in (plain, ahead))
        at_full_speed_ms = share * (before.step_ms.value - wait_ms)
        saved_ms = before.step_ms.value - after.step_ms.value
        most_ms = min(2.0 / share, wait_ms, before.step_ms.value - wait_ms - at_full_speed_ms)
        assert saved_ms == pytest.approx(most_ms, rel=1e-3), "of a step of a share a wait of about as long is a part"
        assert after.step_ms.lower <= after.step_ms.value <= after.step_ms.upper
        assert after.step_ms.lower >= wait_ms if job.input_wait_ms else True
        busy_ms = [each.utilization_ratio.value * each.step_ms.value for each in (before, after)]
        assert busy_ms[1] == pytest.approx(busy_ms[0])
        share_of = after.utilization_ratio
        assert 0 <= share_of.lower <= share_of.value <= share_of.upper <= 1


def test_a_head_start_is_nothing_to_a_job_that_never_waits_or_a_device_that_nothing_holds_up(
    predictor: Predictor,
) -> None:
    for job, share in ((JOB, 1 / 3), (waiting(18.0), 1.0), (sharing(predictor, 18.0), 1.0)):
        before, after = (
            ask(predictor, job, found=held_up(predictor, share, head_start_ms)) for head_start_ms in (0.0, 2.0)
        )
        for name in ("step_ms", "utilization_ratio"):
            assert getattr(after, name)[:3] == pytest.approx(getattr(before, name)[:3]), name


def test_a_longer_wait_never_makes_a_step_shorter(predictor: Predictor) -> None:
    found = held_up(predictor, 1 / 3, 2.0)
    steps = [ask(predictor, waiting(wait_ms), found=found).step_ms for wait_ms in (1e-3, 1.0, 3.0, 6.0, 7.0, 18.0)]
    for less, more in itertools.pairwise(steps):
        assert less.value <= more.value + 1e-6


def test_passes_that_each_wait_each_have_a_head_start(predictor: Predictor) -> None:
    for job in (waiting(64.0), sharing(predictor, 64.0)):
        before, after = (
            ask(predictor, job, found=held_up(predictor, 1 / 3, head_start_ms), micro_batch_sizes=(16,))
            for head_start_ms in (0.0, 0.1)
        )
        saved_ms = before.micro_batches[0].step_ms.value - after.micro_batches[0].step_ms.value
        assert saved_ms == pytest.approx(4 * 0.3)


def test_jobs_with_a_head_start_cost_each_other_more(predictor: Predictor) -> None:
    jobs = [dataclasses.replace(each, settings=waiting(18.0)) for each in pair_jobs(predictor)]
    plain, ahead = (
        slowdowns(predictor, jobs, held_up(predictor, 1 / 3, head_start_ms)) for head_start_ms in (0.0, 2.0)
    )
    assert all(more > less for less, more in zip(plain, ahead, strict=True))


def test_how_long_is_computed_is_not_known_exactly_so_neither_is_the_share(predictor: Predictor) -> None:
    busy, timed = ask(predictor, JOB), ask(predictor, waiting(18.0))
    share = timed.utilization_ratio
    assert share.lower / share.value < busy.utilization_ratio.lower / busy.utilization_ratio.value
    assert share.upper / share.value > busy.utilization_ratio.upper / busy.utilization_ratio.value
    assert share.upper < busy.utilization_ratio.upper * (1 - 18.0 / timed.step_ms.upper), "independent of each other"


def test_a_slower_device_computes_longer_and_waits_as_long(predictor: Predictor) -> None:
    slow = slowed(predictor, 3.0)
    usual, found = ask(predictor, waiting(18.0)), ask(predictor, waiting(18.0), found=slow)
    assert found.step_ms.value == pytest.approx(3 * (usual.step_ms.value - 18.0) + 18.0)
    assert found.step_ms.lower > 18.0
    assert found.utilization_ratio.value > usual.utilization_ratio.value


def test_a_share_of_a_step_is_the_wait_of_the_usual_device(predictor: Predictor) -> None:
    """Where the share was measured both say the same; elsewhere the share is that of another computing time."""
    busy = ask(predictor, JOB, UNTRAINED).step_ms.value
    timed, shared = waiting(3 * busy), dataclasses.replace(JOB, input_wait_ratio=0.75)
    assert ask(predictor, timed, UNTRAINED).step_ms.value == pytest.approx(
        ask(predictor, shared, UNTRAINED).step_ms.value
    )


def test_parts_of_a_batch_wait_parts_of_the_wait(predictor: Predictor) -> None:
    sizes = (16, 32, 64)
    busy = ask(predictor, JOB, UNTRAINED, micro_batch_sizes=sizes).micro_batches
    found = ask(predictor, waiting(18.0), UNTRAINED, micro_batch_sizes=sizes).micro_batches
    assert [each.step_ms.value for each in found] == pytest.approx([each.step_ms.value + 18.0 for each in busy])


def test_the_wait_is_one_contribution_to_a_step(predictor: Predictor) -> None:
    found = ask(predictor, waiting(18.0), explain=True)
    for estimate in (found.step_ms, found.utilization_ratio, found.memory_bytes):
        assert sum(each.contribution for each in estimate.explanation) == pytest.approx(estimate.value)
    last = found.step_ms.explanation[-1]
    assert (last.feature, last.feature_value) == ("input_wait_ms", 18.0)
    assert last.contribution == pytest.approx(found.step_ms.value - ask(predictor, JOB).step_ms.value)


def test_a_predictor_that_keeps_nothing_answers_the_same(predictor: Predictor) -> None:
    fresh = Predictor(GraphLibrary(InProcessDescriber(), None), predictor._versions, estimators_max=0)
    for batch, wait_ms in ((64, 18.0), (64, 9.0), (32, 9.0), (64, 18.0), (48, 1e-3)):
        settings = JobSettings(global_batch_size=batch, input_wait_ms=wait_ms)
        answers = [ask(each, settings, find_largest_batch=True, find_memory_states=True) for each in (predictor, fresh)]
        assert answers[0]._replace(prediction_id="") == answers[1]._replace(prediction_id="")


def pair_jobs(predictor: Predictor, **settings: Any) -> list[PairJob]:
    graph_sha256 = predictor.keep_graph(graphs()["wide"])[0]
    job = PairJob(job_id="a", settings=dataclasses.replace(JOB, **settings), graph_sha256=graph_sha256)
    return [job, dataclasses.replace(job, job_id="b", settings=JOB)]


def slowdowns(predictor: Predictor, jobs: list[PairJob], found: DeviceCalibration | None = None) -> list[float]:
    question = PairsQuestion(device=DEVICE, jobs=jobs, calibration=found)
    return [float(value) for value in predictor.predict_pairs(question).slowdown_ratio.reshape(-1)]


def test_pairs_know_the_share_that_a_wait_is_of_a_predicted_step(predictor: Predictor) -> None:
    step_ms = ask(predictor, waiting(18.0)).step_ms.value
    ratio = round(18.0 / step_ms, 6)
    known: dict[str, Any] = {"known_step_ms": step_ms, "known_utilization_ratio": 0.4}
    timed, shared = (
        [dataclasses.replace(each, **known) for each in pair_jobs(predictor, **settings)]
        for settings in ({"input_wait_ms": 18.0}, {"input_wait_ratio": ratio})
    )
    assert slowdowns(predictor, timed) == pytest.approx(slowdowns(predictor, shared), abs=1e-5)
    assert slowdowns(predictor, timed) != pytest.approx(slowdowns(predictor, pair_jobs(predictor)), abs=1e-2)


def test_a_measured_step_says_what_share_of_it_is_waited_for(predictor: Predictor) -> None:
    known: dict[str, Any] = {"known_step_ms": 36.0, "known_utilization_ratio": 0.4, "known_memory_bytes": 1e8}
    timed, shared = (
        [dataclasses.replace(each, **known) for each in pair_jobs(predictor, **settings)]
        for settings in ({"input_wait_ms": 18.0}, {"input_wait_ratio": 0.5})
    )
    assert slowdowns(predictor, timed) == slowdowns(predictor, shared)
    content = {"job_keys": [each.key for each in timed], "known_alone": write_alone(timed)}
    kept = read_alone(content)[timed[0].key]
    assert (kept.settings.input_wait_ratio, kept.known_step_ms) == (0.5, 36.0)


def test_jobs_that_share_a_device_are_weighed_with_their_waits_on_it(predictor: Predictor) -> None:
    found = slowed(predictor, 3.0)
    waits, busy = (pair_jobs(predictor, input_wait_ms=wait_ms) for wait_ms in (50.0, 0.0))
    assert slowdowns(predictor, waits, found)[1] < slowdowns(predictor, busy, found)[1]
    risk = RiskQuestion(device=DEVICE, jobs=waits, calibration=found)
    assert predictor.predict_memory_risk(risk).memory_bytes[0].value > 0


def test_a_wait_in_milliseconds_is_kept_for_when_its_job_was_measured(predictor: Predictor) -> None:
    own = open_predictor()
    before, other = ask(own, waiting(18.0)), ask(own, waiting(9.0, dataclasses.replace(JOB, global_batch_size=32)))
    content = {
        "job_key": before.job_key,
        "graph_sha256": before.graph.graph_sha256,
        "settings": [BATCH, "train", "fp32", "adam", 0.0],
        "bindings": {},
        "input_wait_ms": 18.0,
    }
    entry = PredictionEntry(prediction_id="p", at_ms=0, kind="job", device=DEVICE, model_version="v", content=content)
    measured_ms = 18.0 + 2 * (before.step_ms.value - 18.0)
    joined = [(entry, {"step_ms_mean": measured_ms, "window_ms": 60_000})] * 4
    own.relearn(joined, ())
    after = ask(own, waiting(18.0))
    assert after.step_ms.level is Level.OBSERVED
    assert after.step_ms.value == pytest.approx(measured_ms, rel=0.05)
    half = ask(own, waiting(9.0, dataclasses.replace(JOB, global_batch_size=32)))
    assert half.step_ms.value > other.step_ms.value, "a sample of it is waited for as long: the same job otherwise"
    longer = ask(own, waiting(18.0, dataclasses.replace(JOB, global_batch_size=32)))
    fresh = ask(predictor, waiting(18.0, dataclasses.replace(JOB, global_batch_size=32)))
    assert longer.step_ms == fresh.step_ms


def test_jobs_of_one_line_wait_as_long_for_each_sample() -> None:
    quarter = JobSettings(global_batch_size=16, optimizer="adam", precision="bf16", input_wait_ms=4.5)
    assert line_key("a", waiting(18.0)) == line_key("a", quarter)
    assert line_key("a", waiting(18.0)) != line_key("a", dataclasses.replace(quarter, input_wait_ms=18.0))
    assert line_key("a", waiting(18.0)) != line_key("a", JOB)
