"""Answers about a device that was calibrated: what its anchors took moves every estimate, and widens by their noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.device_calibration import DeviceCalibration
from cotenant.device_calibration_message import calibration_message
from cotenant.job_settings import JobSettings
from cotenant.job_settings_message import settings_message
from cotenant.v1 import prediction_pb2, prediction_pb2_grpc
from predictor_service.errors import InvalidRequestError
from predictor_service.features.anchor_networks import GPU_ANCHORS, STANDIN_ANCHORS, AnchorNetwork, read_anchor_graph
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import (
    JobAnswer,
    JobQuestion,
    PairJob,
    PairsAnswer,
    PairsQuestion,
    RiskQuestion,
)
from tests.support.calibrations import anchor_of, calibration
from tests.support.measured_dataset import DEVICE, graphs
from tests.support.predictor_service import listening_server, open_predictor

BATCH = 64
MIB = 1 << 20


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return open_predictor()


def said_of(predictor: Predictor, reference: AnchorNetwork, device: str = DEVICE) -> JobAnswer:
    """What the models say of an anchor without any calibration."""
    settings = JobSettings(global_batch_size=reference.batch_size, optimizer=reference.optimizer)
    return predictor.predict_job(
        JobQuestion(settings=settings, device=device, onnx_graph=read_anchor_graph(reference.network))
    )


def measured(
    predictor: Predictor,
    ratios: tuple[float, ...],
    *,
    busy_ratio: float = 1.0,
    memory_bytes: int = 0,
    device: str = DEVICE,
) -> DeviceCalibration:
    """A calibration whose anchors took so many times what the models say of them."""
    networks = STANDIN_ANCHORS if device == DEVICE else GPU_ANCHORS
    answers = [said_of(predictor, network, device) for network in networks]
    anchors = tuple(
        anchor_of(
            network,
            step_ms=ratio * answer.step_ms.value,
            memory_peak_bytes=round(answer.memory_bytes.value) + memory_bytes,
            busy_ratio=busy_ratio,
        )
        for network, answer, ratio in zip(networks, answers, ratios, strict=True)
    )
    return replace(calibration(device=device), anchors=anchors)


def ask(
    predictor: Predictor,
    found: DeviceCalibration | None = None,
    *,
    wait_ratio: float = 0.0,
    explain: bool = False,
    device: str = DEVICE,
) -> JobAnswer:
    settings = JobSettings(global_batch_size=BATCH, input_wait_ratio=wait_ratio)
    return predictor.predict_job(
        JobQuestion(
            settings=settings,
            device=device,
            onnx_graph=graphs()["wide"],
            calibration=found,
            explain=explain,
            find_largest_batch=True,
            micro_batch_sizes=(16,),
        )
    )


def test_a_device_as_in_the_training_set_changes_no_value(predictor: Predictor) -> None:
    plain, same = ask(predictor), ask(predictor, measured(predictor, (1.0, 1.0, 1.0)))
    assert same.step_ms.value == pytest.approx(plain.step_ms.value)
    assert same.memory_bytes.value == pytest.approx(plain.memory_bytes.value, rel=1e-6)
    assert same.memory_bytes[:3] == pytest.approx(plain.memory_bytes[:3], abs=MIB)  # two runs of one job differ
    assert same.utilization_ratio.value == pytest.approx(plain.utilization_ratio.value)


def test_steps_take_as_many_times_as_long_as_the_anchors_did(predictor: Predictor) -> None:
    plain, slow = ask(predictor), ask(predictor, measured(predictor, (3.0, 3.0, 3.0)))
    assert slow.step_ms.value == pytest.approx(3 * plain.step_ms.value)
    assert slow.step_ms.lower < slow.step_ms.value < slow.step_ms.upper
    assert slow.micro_batches[0].step_ms.value == pytest.approx(3 * plain.micro_batches[0].step_ms.value)


def test_anchors_that_disagree_count_for_less_and_widen_the_interval_of_step_times_only(predictor: Predictor) -> None:
    plain, agreed = ask(predictor), ask(predictor, measured(predictor, (2.0, 2.0, 2.0)))
    torn = ask(predictor, measured(predictor, (1.0, 2.0, 4.0)))
    assert plain.step_ms.value < torn.step_ms.value < agreed.step_ms.value
    assert torn.step_ms.upper / torn.step_ms.lower > 1.5 * agreed.step_ms.upper / agreed.step_ms.lower
    assert torn.memory_bytes[:3] == pytest.approx(agreed.memory_bytes[:3])


def test_foreign_load_widens_the_interval(predictor: Predictor) -> None:
    quiet = measured(predictor, (2.0, 2.0, 2.0))
    loud = replace(quiet, foreign_load=True)
    one, other = ask(predictor, quiet), ask(predictor, loud)
    assert other.step_ms.upper > one.step_ms.upper
    assert "others used the device" in other.warnings[0].message


def test_steps_may_be_as_short_as_the_type_says_where_others_slowed_the_anchors_down(predictor: Predictor) -> None:
    plain = ask(predictor)
    loud = ask(predictor, replace(measured(predictor, (4.0, 4.0, 4.0), busy_ratio=0.3), foreign_load=True))
    assert loud.step_ms.lower <= plain.step_ms.lower
    assert loud.step_ms.value == pytest.approx(4 * plain.step_ms.value)
    assert loud.utilization_ratio.upper >= plain.utilization_ratio.upper


def test_an_anchor_that_was_fast_under_foreign_load_is_believed(predictor: Predictor) -> None:
    loud = ask(predictor, replace(measured(predictor, (0.5, 0.5, 0.5)), foreign_load=True))
    quiet = ask(predictor, measured(predictor, (0.5, 0.5, 0.5)))
    assert loud.step_ms.value == pytest.approx(quiet.step_ms.value)
    assert loud.step_ms.lower == pytest.approx(quiet.step_ms.lower, rel=0.3)


def pair_answer(predictor: Predictor, found: DeviceCalibration | None) -> PairsAnswer:
    """Two jobs of which one is measured: busy half of the time."""
    graph_sha256, *_ = predictor.keep_graph(graphs()["wide"])
    jobs = (
        PairJob(
            job_id="measured",
            settings=JobSettings(global_batch_size=BATCH),
            known_step_ms=20.0,
            known_utilization_ratio=0.5,
            known_memory_bytes=100.0 * MIB,
        ),
        PairJob(job_id="predicted", settings=JobSettings(global_batch_size=32), graph_sha256=graph_sha256),
    )
    return predictor.predict_pairs(PairsQuestion(device=DEVICE, jobs=jobs, calibration=found))


def test_a_calibration_that_others_disturbed_changes_no_pair(predictor: Predictor) -> None:
    """A measured job would else need the whole device, and the other one take four times as long."""
    plain = pair_answer(predictor, None)
    disturbed = replace(measured(predictor, (4.0, 3.0, 5.0), busy_ratio=0.4), foreign_load=True)
    answer = pair_answer(predictor, disturbed)
    for name in ("slowdown_ratio", "lower", "upper", "in_domain"):
        assert getattr(answer, name) == pytest.approx(getattr(plain, name)), name


def test_an_undisturbed_calibration_of_a_device_that_is_held_up_still_moves_pairs(predictor: Predictor) -> None:
    plain = pair_answer(predictor, None)
    held_up = pair_answer(predictor, measured(predictor, (1.0, 1.0, 1.0), busy_ratio=0.6))
    assert held_up.slowdown_ratio[0, 0] > plain.slowdown_ratio[0, 0]


def test_waiting_for_input_does_not_take_longer_on_a_slower_device(predictor: Predictor) -> None:
    plain = ask(predictor, wait_ratio=0.75)
    slow = ask(predictor, measured(predictor, (3.0, 3.0, 3.0)), wait_ratio=0.75)
    assert slow.step_ms.value == pytest.approx((0.25 * 3 + 0.75) * plain.step_ms.value)
    share = plain.utilization_ratio.value
    assert slow.utilization_ratio.value == pytest.approx(3 * share / (3 * share + 1 - share))
    assert slow.utilization_ratio.value > plain.utilization_ratio.value


def test_a_device_that_is_held_up_shows_less_utilization_and_no_less_slowdown(predictor: Predictor) -> None:
    """A core under a CPU quota is never seen to be fully busy, and jobs compete for it all the same."""
    full = measured(predictor, (1.5, 1.5, 1.5))
    held_up = measured(predictor, (1.5, 1.5, 1.5), busy_ratio=0.6)
    answer = ask(predictor, held_up)
    assert answer.utilization_ratio.value == pytest.approx(0.6 * ask(predictor, full).utilization_ratio.value)
    assert answer.utilization_ratio.upper <= 0.63

    graph_sha256, *_ = predictor.keep_graph(graphs()["wide"])
    jobs = (
        PairJob(job_id="a", settings=JobSettings(global_batch_size=BATCH), graph_sha256=graph_sha256),
        PairJob(job_id="b", settings=JobSettings(global_batch_size=32), graph_sha256=graph_sha256),
    )
    slowdowns = [
        predictor.predict_pairs(PairsQuestion(device=DEVICE, jobs=jobs, calibration=found)).slowdown_ratio
        for found in (full, held_up)
    ]
    assert slowdowns[0] == pytest.approx(slowdowns[1])


def test_a_larger_context_is_added_to_memory_and_taken_from_the_largest_batch(predictor: Predictor) -> None:
    plain, larger = ask(predictor), ask(predictor, measured(predictor, (1.0, 1.0, 1.0), memory_bytes=300 * MIB))
    assert larger.memory_bytes.value - plain.memory_bytes.value == pytest.approx(300 * MIB, rel=0.01)
    assert plain.memory_bytes.upper_99 is not None
    assert larger.memory_bytes.upper_99 == pytest.approx(plain.memory_bytes.upper_99 + 300 * MIB, rel=0.01)
    assert larger.largest_batch_that_fits is not None
    assert plain.largest_batch_that_fits is not None
    assert larger.largest_batch_that_fits < plain.largest_batch_that_fits


def test_memory_risk_counts_the_context_as_well(predictor: Predictor) -> None:
    graph_sha256, *_ = predictor.keep_graph(graphs()["wide"])
    jobs = (PairJob(job_id="a", settings=JobSettings(global_batch_size=BATCH), graph_sha256=graph_sha256),)
    heavy = measured(predictor, (1.0, 1.0, 1.0), memory_bytes=300 * MIB)
    plain, larger = (
        predictor.predict_memory_risk(RiskQuestion(device=DEVICE, jobs=jobs, calibration=found)).memory_bytes[0]
        for found in (None, heavy)
    )
    assert larger.value - plain.value == pytest.approx(300 * MIB, rel=0.01)


def test_a_device_without_any_model_is_narrowed_by_its_anchors(predictor: Predictor) -> None:
    device = "NVIDIA H200"
    plain = ask(predictor, device=device)
    found = ask(predictor, measured(predictor, (5.0, 6.0, 5.5), device=device), device=device)
    assert found.step_ms.value == pytest.approx(5.485 * plain.step_ms.value, rel=0.01)
    assert found.step_ms.upper / found.step_ms.lower < 0.5 * plain.step_ms.upper / plain.step_ms.lower
    assert found.step_ms.range_not_calibrated


def test_contributions_still_add_up_to_the_estimate(predictor: Predictor) -> None:
    answer = ask(predictor, measured(predictor, (2.0, 2.5, 3.0), memory_bytes=50 * MIB), explain=True)
    for estimate in (answer.step_ms, answer.memory_bytes):
        assert estimate.explanation
        assert sum(each.contribution for each in estimate.explanation) == pytest.approx(estimate.value, rel=1e-6)
        assert estimate.explanation[-1].feature == "calibration"


def test_the_answer_says_what_the_calibration_did(predictor: Predictor) -> None:
    codes = {notice.code: notice.message for notice in ask(predictor, measured(predictor, (2.0, 2.0, 2.0))).warnings}
    assert "2.00 times" in codes["CALIBRATED"]
    assert "CALIBRATED" not in {notice.code for notice in ask(predictor).warnings}


def ask_h200(
    predictor: Predictor, network: int, precision: str, found: DeviceCalibration | None
) -> tuple[JobAnswer, str]:
    """The answer about an anchor network in a precision, and what it says of the calibration."""
    reference = GPU_ANCHORS[network]
    settings = JobSettings(global_batch_size=48, optimizer=reference.optimizer, precision=precision)
    graph = read_anchor_graph(reference.network)
    answer = predictor.predict_job(
        JobQuestion(settings=settings, device="NVIDIA H200", onnx_graph=graph, calibration=found)
    )
    return answer, "".join(notice.message for notice in answer.warnings if notice.code == "CALIBRATED")


def reach(answer: JobAnswer) -> float:
    return answer.step_ms.upper / answer.step_ms.lower


def test_in_a_precision_in_which_no_anchor_ran_a_range_is_no_narrower_than_without_a_calibration(
    predictor: Predictor,
) -> None:
    found = measured(predictor, (0.9, 1.0, 1.1), device="NVIDIA H200")
    (plain, _), (single, _), (half, told) = (
        ask_h200(predictor, 0, *asked) for asked in (("bf16", None), ("fp32", found), ("bf16", found))
    )
    assert half.step_ms.value == pytest.approx(plain.step_ms.value)
    assert half.step_ms.lower <= plain.step_ms.lower
    assert half.step_ms.upper >= plain.step_ms.upper
    assert reach(half) > 1.5 * reach(single)
    assert "none in bf16: ranges of such steps are wider" in told


def test_anchors_that_ran_in_half_precision_narrow_its_ranges_and_leave_fp32_alone(predictor: Predictor) -> None:
    found = measured(predictor, (0.9, 1.0, 1.1), device="NVIDIA H200")
    half_anchor = replace(found.anchors[0], precision="bf16", step_ms=3 * found.anchors[0].step_ms)
    both = replace(found, anchors=(*found.anchors, half_anchor))
    (before, _), (after, told) = (ask_h200(predictor, 1, "bf16", each) for each in (found, both))
    assert reach(after) < reach(before)
    assert after.step_ms.value > before.step_ms.value
    assert "by 4 networks" in told
    assert "none in" not in told
    single = [ask_h200(predictor, 1, "fp32", each) for each in (found, both)]
    assert single[0][0].step_ms == single[1][0].step_ms
    assert single[0][1] == single[1][1]


@pytest.mark.parametrize(("network", "is_wider"), [(0, False), (1, True)])
def test_tf32_is_what_fp32_is_to_convolutions_and_not_to_products(
    predictor: Predictor, network: int, *, is_wider: bool
) -> None:
    found = measured(predictor, (0.9, 1.0, 1.1), device="NVIDIA H200")
    single, short = (ask_h200(predictor, network, precision, found) for precision in ("fp32", "tf32"))
    assert ("none in tf32" in short[1]) == is_wider
    assert (reach(short[0]) > 1.2 * reach(single[0])) == is_wider


def test_without_a_calibration_an_answer_names_the_machines_that_checked_its_ranges(predictor: Predictor) -> None:
    told = {notice.code: notice.message for notice in ask(predictor).warnings}
    assert predictor.version is not None
    (measured_by,) = predictor.version.manifest.datasets
    assert f"where these data sets were measured: {measured_by}; " in told["CHECKED_ELSEWHERE"]
    assert "on yours is not known before `cotenant calibrate` there" in told["CHECKED_ELSEWHERE"]


def test_a_calibrated_device_is_not_told_that_its_machine_is_unknown(predictor: Predictor) -> None:
    codes = {notice.code for notice in ask(predictor, measured(predictor, (2.0, 2.0, 2.0))).warnings}
    assert "CHECKED_ELSEWHERE" not in codes


def test_anchors_that_nobody_knows_change_nothing_and_are_said(predictor: Predictor) -> None:
    unknown = replace(
        calibration(), anchors=tuple(replace(each, graph_sha256="0" * 64) for each in calibration().anchors)
    )
    answer = ask(predictor, unknown)
    assert answer.step_ms == ask(predictor).step_ms
    assert {"CALIBRATION_UNUSED", "CHECKED_ELSEWHERE"} <= {notice.code for notice in answer.warnings}


def test_a_calibration_of_another_device_type_is_refused(predictor: Predictor) -> None:
    with pytest.raises(InvalidRequestError, match=r"of a .h200") as refused:
        ask(predictor, replace(calibration(), device="h200"))
    assert "leave the calibration out" in refused.value.remedy


def test_a_hostile_calibration_in_a_message_is_refused_with_its_field(tmp_path: Path) -> None:
    hostile = calibration_message(calibration())
    hostile.launch_ms = float("nan")
    request = prediction_pb2.PredictJobRequest(
        onnx_graph=graphs()["wide"],
        settings=settings_message(JobSettings(global_batch_size=BATCH)),
        device=DEVICE,
        calibration=hostile,
    )
    flood = calibration_message(calibration())
    flood.anchors.extend([flood.anchors[0]] * 10_000)
    with listening_server(tmp_path) as address, grpc.insecure_channel(address) as channel:
        stub = prediction_pb2_grpc.PredictionServiceStub(channel)
        for content, said in ((hostile, "launch_ms is nan"), (flood, "larger than any")):
            request.calibration.CopyFrom(content)
            with pytest.raises(grpc.RpcError) as refused:
                stub.PredictJob(request)
            error: Any = refused.value
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert said in error.details()
        request.calibration.CopyFrom(calibration_message(calibration()))
        request.calibration.measured_at_ms = 1_700_000_000_000
        assert stub.PredictJob(request).step_ms.value > 0
