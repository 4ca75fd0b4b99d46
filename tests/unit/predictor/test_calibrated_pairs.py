"""What a calibration's anchors lost together corrects slowdowns of all jobs on the device, as measured pairs do."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from cotenant.device_calibration import AnchorPair, DeviceCalibration
from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from predictor_service.features.anchor_networks import GPU_ANCHORS, STANDIN_ANCHORS
from predictor_service.inference.calibrated_devices import reference_jobs
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import Level, PairJob, PairsAnswer, PairsQuestion
from tests.support.calibrations import anchor_of, calibration
from tests.support.measured_dataset import DEVICE
from tests.support.predictor_service import open_predictor

GPU = "NVIDIA H200"
WAITS = (0.0, 0.5)
MIB = 1 << 20


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return open_predictor()


@pytest.fixture(params=[DEVICE, GPU])
def device(request: pytest.FixtureRequest) -> str:
    """One with a trained model of slowdowns and one without."""
    found: str = request.param
    return found


def calibrated(device: str, *, busy_ratio: float = 1.0) -> DeviceCalibration:
    """A device whose anchors were measured alone."""
    networks = STANDIN_ANCHORS if device == DEVICE else GPU_ANCHORS
    anchors = tuple(
        anchor_of(network, step_ms=10.0 + 5.0 * place, memory_peak_bytes=100 * MIB, busy_ratio=busy_ratio)
        for place, network in enumerate(networks)
    )
    return replace(calibration(device=device), anchors=anchors)


def paired(plain: DeviceCalibration, lost: Mapping[float, float]) -> DeviceCalibration:
    """The same where the first two anchors lost so much, by the share that they waited."""
    one, other, _ = (reference.network for reference in plain.anchors)
    pairs = tuple(
        AnchorPair(
            victim=victim,
            other=co_located,
            slowdown_ratio=ratio,
            input_wait_ratio=wait_ratio,
            other_input_wait_ratio=wait_ratio,
        )
        for wait_ratio, ratio in lost.items()
        for victim, co_located in ((one, other), (other, one))
    )
    return replace(plain, pairs=pairs)


def known(name: str, utilization_ratio: float) -> PairJob:
    return PairJob(
        job_id=name,
        settings=JobSettings(global_batch_size=32, input_wait_ratio=1.0 - utilization_ratio),
        known_step_ms=20.0,
        known_utilization_ratio=utilization_ratio,
        known_memory_bytes=100.0 * MIB,
    )


JOBS = (known("busy", 1.0), known("waits", 0.5), known("idles", 0.3))


def ask(
    predictor: Predictor,
    found: DeviceCalibration,
    observed: Mapping[tuple[str, str], float] | None = None,
) -> PairsAnswer:
    question = PairsQuestion(device=found.device, jobs=JOBS, calibration=found, observed=observed or {})
    return predictor.predict_pairs(question)


def test_anchors_that_lost_less_than_expected_lower_every_slowdown_and_those_that_lost_more_raise_it(
    predictor: Predictor, device: str
) -> None:
    plain = calibrated(device)
    losses = (0.6, 0.9, 1.3)
    answers = [ask(predictor, paired(plain, {0.0: lost})).slowdown_ratio for lost in losses]
    for less, more in itertools.pairwise(answers):
        assert np.all(less < more)


def test_under_foreign_load_pairs_of_anchors_teach_nothing(predictor: Predictor, device: str) -> None:
    loud = replace(calibrated(device), foreign_load=True)
    plain, disturbed = ask(predictor, loud), ask(predictor, paired(loud, {0.0: 3.0}))
    for name in ("slowdown_ratio", "lower", "upper", "level", "in_domain"):
        assert np.array_equal(getattr(disturbed, name), getattr(plain, name)), name


def test_a_speed_that_wanders_widens_the_ranges_of_all_pairs_but_measured_ones(
    predictor: Predictor, device: str
) -> None:
    steady = paired(calibrated(device), {0.0: 0.9})
    own = {("busy", "waits"): 0.2}
    before, after = (ask(predictor, found, own) for found in (steady, replace(steady, speed_wander_ratio=0.1)))
    is_measured = before.level == Level.OBSERVED
    assert is_measured.sum() == 1
    assert np.array_equal(after.slowdown_ratio, before.slowdown_ratio)
    assert np.array_equal(after.level, before.level)
    assert np.array_equal(after.upper > before.upper, ~is_measured)
    assert np.all(after.lower <= before.lower)


def test_what_the_caller_measured_of_its_own_jobs_counts_more(predictor: Predictor, device: str) -> None:
    heavy = paired(calibrated(device), {0.0: 1.5})
    own = ask(predictor, heavy, {("busy", "waits"): 0.2, ("waits", "busy"): 0.2})
    assert own.slowdown_ratio[0, 1] == pytest.approx(0.2)
    assert own.level[0, 1] == Level.OBSERVED
    assert np.all(own.slowdown_ratio < ask(predictor, heavy).slowdown_ratio)


def test_the_answer_is_about_the_callers_jobs_only_and_the_list_of_measured_pairs_knows_of_no_anchor(
    predictor: Predictor, device: str
) -> None:
    answer = ask(predictor, paired(calibrated(device), dict.fromkeys(WAITS, 0.8)))
    assert list(answer.job_ids) == [job.job_id for job in JOBS]
    assert answer.slowdown_ratio.shape == (3, 3)
    assert not answer.times_measured.any()
    assert Level.OBSERVED not in answer.level
    assert predictor.measured_pairs() == []


def test_an_anchor_needs_all_of_a_core_that_is_held_up(predictor: Predictor) -> None:
    """Under a CPU quota it is seen to be busy for a third of the time, and two of them take turns all the time."""
    full, held_up = (paired(calibrated(DEVICE, busy_ratio=ratio), {0.0: 1.0}) for ratio in (1.0, 0.34))
    jobs = tuple(replace(job, known_utilization_ratio=0.34 * (job.known_utilization_ratio or 0.0)) for job in JOBS)
    answer = predictor.predict_pairs(PairsQuestion(device=DEVICE, jobs=jobs, calibration=held_up))
    assert answer.slowdown_ratio == pytest.approx(ask(predictor, full).slowdown_ratio, rel=1e-5)


@pytest.mark.parametrize(
    ("measured", "asked", "counts"),
    [
        (DeviceSharing.TIME_SLICING, DeviceSharing.TIME_SLICING, True),
        (DeviceSharing.TIME_SLICING, DeviceSharing.MPS, False),
        (DeviceSharing.MPS, DeviceSharing.TIME_SLICING, False),
        (DeviceSharing.TIME_SLICING, DeviceSharing.UNSTATED, True),
        (DeviceSharing.UNSTATED, DeviceSharing.MPS, True),  # an older record
    ],
)
def test_pairs_of_a_calibration_count_for_the_way_in_which_they_were_measured(
    predictor: Predictor, device: str, measured: DeviceSharing, asked: DeviceSharing, counts: bool
) -> None:
    plain = replace(calibrated(device), sharing=measured)
    questions = [
        PairsQuestion(device=device, jobs=JOBS, calibration=found, sharing=asked)
        for found in (plain, paired(plain, dict.fromkeys(WAITS, 2.0)))
    ]
    without, with_pairs = (predictor.predict_pairs(each).slowdown_ratio for each in questions)
    assert (with_pairs.tolist() != without.tolist()) is counts


def test_an_anchor_that_waited_half_of_its_step_is_a_job_that_does(predictor: Predictor) -> None:
    plain = calibrated(DEVICE)
    busy, waiting = (
        next(
            job
            for job in reference_jobs(paired(plain, {wait_ratio: 0.5}), DeviceSharing.UNSTATED)
            if "resnet" in job.key
        )
        for wait_ratio in WAITS
    )
    assert (busy.known_step_ms, busy.known_utilization_ratio) == (10.0, 1.0)
    assert (waiting.known_step_ms, waiting.known_utilization_ratio) == (20.0, 0.5)
    assert waiting.settings.input_wait_ratio == 0.5
    assert busy.key != waiting.key


def test_an_anchor_with_a_head_start_needs_more_of_the_device_in_a_shorter_step(predictor: Predictor) -> None:
    """It needs as much of the device a step as one without, which is what others lose to it."""
    plain = paired(calibrated(DEVICE, busy_ratio=0.5), dict.fromkeys(WAITS, 0.3))
    ahead = replace(plain, head_start_ms=1.0)
    before, after = (
        {job.key: job for job in reference_jobs(found, DeviceSharing.UNSTATED)} for found in (plain, ahead)
    )
    for key, job in after.items():
        earlier = before[key]
        saved_ms = 2.0 if job.settings.input_wait_ratio else 0.0
        assert job.known_step_ms == pytest.approx((earlier.known_step_ms or 0.0) - saved_ms), key
        busy_ms, earlier_ms = (
            (each.known_step_ms or 0.0) * (each.known_utilization_ratio or 0.0) for each in (job, earlier)
        )
        assert busy_ms == pytest.approx(earlier_ms), key
        waits_ms = [each.settings.input_wait_ratio * (each.known_step_ms or 0.0) for each in (job, earlier)]
        assert waits_ms[0] == pytest.approx(waits_ms[1]), key


def test_an_anchor_that_ran_once_more_in_half_precision_is_in_its_pairs_what_it_was() -> None:
    plain = paired(calibrated(GPU), {0.0: 0.5})
    again = replace(plain.anchors[0], precision="bf16", step_ms=4.0)
    more = replace(plain, anchors=(*plain.anchors, again))
    assert reference_jobs(more, DeviceSharing.UNSTATED) == reference_jobs(plain, DeviceSharing.UNSTATED)
