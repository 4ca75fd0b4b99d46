"""The model that comes with the program: what it may be asked, and what it never answers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from predictor_service.cross_device.known_networks import NO_NETWORKS
from predictor_service.cross_device.step_model import LEVELS, CrossDeviceStep, answers_for, load_step_model
from predictor_service.cross_device.step_physics import COEFFICIENTS, StepKind
from predictor_service.errors import ModelError
from predictor_service.features.devices import DEVICE_TYPES, find_device_type
from tests.support.cases import for_each
from tests.unit.cross_device.test_step_physics import A100, step_work

GPUS = sorted(name for name, device in DEVICE_TYPES.items() if answers_for(device))
KIND = StepKind(device=A100, precision="fp32", is_training=True)


@for_each("name", GPUS)
def test_every_type_of_the_table_has_an_answer_with_a_range_around_it(name: str) -> None:
    model = load_step_model()
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        kind = StepKind(device=DEVICE_TYPES[name], precision=precision, is_training=True)
        found = model.estimate(step_work(1, 16, 4096), kind, 0.9)
        assert np.isfinite(found.upper).all()
        assert (found.lower > 0).all()
        assert (found.lower < found.value).all()
        assert (found.value < found.upper).all()
        assert (np.diff(found.value) >= 0).all()


def test_a_generation_of_which_no_card_was_measured_computes_as_those_before_and_after_it() -> None:
    reached = dict(zip(COEFFICIENTS, load_step_model().logs, strict=True))
    assert not any(DEVICE_TYPES[name].generation.value == "hopper" for name in load_step_model().devices)
    lower, upper = sorted(reached[f"compute_{name}"] for name in ("ampere", "blackwell"))
    assert 0.8 * lower <= reached["compute_hopper"] <= upper  # drawn to what the published peaks say as well, to 0
    assert lower > 0.01
    assert reached["traffic_hopper"] == pytest.approx(0.0, abs=1e-6)


@for_each(
    "facts",
    [
        {"forward_macs_per_sample": 0.0, "convolution_macs_per_sample": 0.0},
        {"forward_macs_per_sample": 1e18, "convolution_macs_per_sample": 1e18},
        {"parameters": 0.0, "nodes": 0.0, "traffic_bytes_per_sample": 0.0, "traffic_bytes_constant": 0.0},
        {"nodes": 1e9, "recurrent_steps": 1e9},
        {"parameters": 1e15},
    ],
)
def test_absurd_networks_have_finite_positive_answers(facts: dict[str, float]) -> None:
    found = load_step_model().estimate(step_work(1, 1_000_000, **facts), KIND, 0.9)
    assert np.isfinite(found.upper).all()
    assert (found.lower > 0).all()


@for_each("name", ["NVIDIA A100-SXM4-40GB", "NVIDIA B200", "AMD Instinct MI300X", "Tesla P100-PCIE-16GB"])
def test_a_large_transformer_is_never_said_to_be_faster_than_its_products_at_the_peak(name: str) -> None:
    """Seven billion weights, 2,048 tokens: coefficients that small products taught would beat the peak."""
    device, macs = DEVICE_TYPES[name], 1.35e13
    work = step_work(
        1, 16, forward_macs_per_sample=macs, convolution_macs_per_sample=0.0, depthwise_convolution_macs_per_sample=0.0,
        nodes=800.0, parameters=6.6e9, traffic_bytes_per_sample=1e11,
    )  # fmt: skip
    found = load_step_model().estimate(work, StepKind(device=device, precision="fp32", is_training=True), 0.9)
    at_peak_ms = 1e3 * 3 * 2 * macs * work.batch / device.peak("fp32")
    assert (found.lower >= at_peak_ms * (1 - 1e-9)).all()
    assert (found.value >= 1.05 * at_peak_ms).all()


@for_each("name", GPUS)
def test_tf32_is_never_said_to_take_longer_than_fp32(name: str) -> None:
    model, device = load_step_model(), DEVICE_TYPES[name]
    work = step_work(1, 16, 4096, convolution_macs_per_sample=0.0, depthwise_convolution_macs_per_sample=0.0)
    for is_training in (True, False):
        tf32, fp32 = (
            model.time_ms(work, [StepKind(device=device, precision=precision, is_training=is_training)])
            for precision in ("tf32", "fp32")
        )
        assert (tf32 <= fp32).all()


def test_a_step_of_a_tiny_network_is_a_few_launches_and_only_its_upper_end_has_what_scripts_do() -> None:
    tiny = step_work(1, nodes=4.0, parameters=600.0, forward_macs_per_sample=600.0, convolution_macs_per_sample=0.0,
                     depthwise_convolution_macs_per_sample=0.0, traffic_bytes_per_sample=1e3)  # fmt: skip
    model = load_step_model()
    found = model.estimate(tiny, KIND, 0.9)
    assert found.value[0] < 1.5 < model.script_of(KIND)
    assert found.upper[0] > model.script_of(KIND)


def test_a_usual_step_has_what_scripts_do_and_its_ends_reach_as_far_as_was_learned() -> None:
    model, work = load_step_model(), step_work(64)
    usual = model.estimate(work, KIND, 0.9)
    script_ms = usual.value[0] - model.bare_ms(work, [KIND])[0]
    assert script_ms == pytest.approx(model.script_of(KIND), rel=0.05)
    below, above = (np.interp(0.9, LEVELS, side) for side in model.widths["convolutional"])
    assert np.log(usual.value / usual.lower)[0] == pytest.approx(below)
    assert np.log(usual.upper / usual.value)[0] == pytest.approx(above)


def test_a_slice_of_a_measured_generation_has_the_range_of_a_generation_that_taught_nothing() -> None:
    """No slice taught. Those of MISO's A100 held half of its rows in the range of whole cards."""
    model, part = load_step_model(), find_device_type(f"{A100.name} MIG 3g.20gb")
    assert part is not None
    work = step_work(64)
    found = model.estimate(work, StepKind(device=part, precision="fp32", is_training=True), 0.9)
    below, above = (np.interp(0.9, LEVELS, side) for side in model.unseen_widths["convolutional"])
    assert np.log(found.value / found.lower)[0] == pytest.approx(below)
    assert np.log(found.upper / found.value)[0] == pytest.approx(above)


def test_what_scripts_do_never_makes_a_longer_step_look_shorter() -> None:
    bare_ms = np.geomspace(0.01, 1e4, 200)
    assert (np.diff(load_step_model().with_script(bare_ms, [KIND])) > 0).all()


def test_a_higher_confidence_has_a_wider_range() -> None:
    widths = [
        float(np.log(found.upper / found.lower)[0])
        for confidence in (0.0, 0.5, 0.8, 0.9, 0.95, 0.999)
        if (found := load_step_model().estimate(step_work(8), KIND, confidence))
    ]
    assert widths == sorted(widths)
    assert widths[0] > 0


def test_a_network_like_none_that_was_measured_is_answered_by_physics_alone() -> None:
    model = load_step_model()
    strange = step_work(1, nodes=1e7, parameters=1e13, recurrent_steps=1e8)
    plain = CrossDeviceStep(
        logs=model.logs, correction=model.correction.__class__(
            means=model.correction.means, deviations=model.correction.deviations,
            centres=model.correction.centres, weights=np.zeros_like(model.correction.weights),
        ), widths=model.widths, unseen_widths=model.unseen_widths, networks=NO_NETWORKS,
    )  # fmt: skip
    assert model.time_ms(strange, [KIND])[0] == pytest.approx(plain.time_ms(strange, [KIND])[0], rel=0.01)


def test_the_stored_form_is_read_as_it_was_written() -> None:
    model = load_step_model()
    again = CrossDeviceStep.from_json(model.to_json())
    assert again.to_json() == model.to_json()
    assert again.time_ms(step_work(4), [KIND])[0] == pytest.approx(model.time_ms(step_work(4), [KIND])[0], rel=1e-4)


@for_each("text", ["", "{}", "[]", "null", '{"format": "cotenant.cross_device_step/7"}', "\0"])
def test_a_damaged_file_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="damaged"):
        CrossDeviceStep.from_json(text)


def test_a_file_of_another_format_is_refused_with_a_remedy() -> None:
    stored = {**json.loads(load_step_model().to_json()), "format": "cotenant.cross_device_step/9"}
    with pytest.raises(ModelError, match="train-cross-device"):
        CrossDeviceStep.from_json(json.dumps(stored))


def test_the_stored_widths_rise_with_the_level() -> None:
    model = load_step_model()
    for widths in (*model.widths.values(), *model.unseen_widths.values()):
        assert widths.shape == (2, len(LEVELS))
        assert (np.diff(widths, axis=1) >= 0).all()
        assert (widths > 0).all()


def test_widths_that_do_not_reach_below_and_above_are_damaged() -> None:
    stored = json.loads(load_step_model().to_json())
    stored["widths"]["convolutional"] = stored["widths"]["convolutional"][0]
    with pytest.raises(ModelError, match="below and above"):
        CrossDeviceStep.from_json(json.dumps(stored))


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "AMD Instinct MI300X"])
def test_a_device_whose_generation_taught_nothing_has_the_range_of_generations_left_out(name: str) -> None:
    model, work = load_step_model(), step_work(8)
    known, strange = (
        model.estimate(work, StepKind(device=DEVICE_TYPES[each], precision="fp32", is_training=True), 0.9)
        for each in ("NVIDIA A100-SXM4-40GB", name)
    )
    assert np.log(strange.upper / strange.value)[0] == pytest.approx(
        np.interp(0.9, LEVELS, model.unseen_widths["convolutional"][1])
    )
    assert (strange.upper / strange.lower)[0] > (known.upper / known.lower)[0]


def test_a_batch_has_the_same_answer_alone_and_among_others_to_the_last_bit() -> None:
    batches = tuple(1 << place for place in range(12))
    together = load_step_model().estimate(step_work(*batches), KIND, 0.9)
    alone = [load_step_model().estimate(step_work(batch), KIND, 0.9) for batch in batches]
    assert [float(each.value[0]) for each in alone] == together.value.tolist()
    assert [float(each.upper[0]) for each in alone] == together.upper.tolist()
