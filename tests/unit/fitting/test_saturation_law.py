"""Utilization of a GPU starts from the law of busy time: few rows move it little, and others learn what it misses."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.features.devices import DEVICE_TYPES, STANDIN_DEVICE
from predictor_service.features.uncalibrated_utilization import LAW, busy_ms
from predictor_service.fitting.competition import LAW as LAW_NAME
from predictor_service.fitting.competition import MEAN_CORRECTION, incumbent_of, list_candidates
from predictor_service.fitting.conversion import golden_of, prove
from predictor_service.registry.onnx_model import OnnxModel
from predictor_service.regressors.candidates import CANDIDATES
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.saturation_law import SaturationLaw
from predictor_service.selection.targets import MEMORY, SM_ACTIVITY, STEP, UTILIZATION, Target
from tests.support.cases import for_each

A100 = "NVIDIA A100-SXM4-40GB"
COLUMNS = UTILIZATION.columns
GROUPS = [frozenset({"family"})]


def rows(count: int, seed: int = 0) -> FeatureArray:
    """Jobs of 1e9 to 1e13 operations; half of them train, with Adam."""
    random = np.random.default_rng(seed)
    found = random.uniform(0.0, 1.0, (count, len(COLUMNS)))
    place = {name: COLUMNS.index(name) for name in COLUMNS}
    found[:, place["log_flops"]] = np.log(10) * random.uniform(9, 13, count)
    found[:, place["log_intensity"]] = np.log(10) * random.uniform(0, 2, count)
    found[:, place["log_parameters"]] = np.log(10) * random.uniform(5, 8, count)
    found[:, place["is_training"]] = np.arange(count) % 2
    found[:, place["optimizer_slots"]] = 2.0 * (np.arange(count) % 2)
    return found.astype(np.float32)


def share(features: FeatureArray, level: float, slope: float) -> FloatArray:
    """What a law says of rows, by the function that serves devices without measurements."""
    device, found = DEVICE_TYPES[A100], []
    for row in features.astype(np.float64):
        named = dict(zip(COLUMNS, row, strict=True))
        flops = np.exp(named["log_flops"])
        update_ms = 2 * 4.0 * (2 + 2) * np.exp(named["log_parameters"]) / device.memory_bytes_per_s * 1e3
        busy = busy_ms(
            flops,
            flops / np.exp(named["log_intensity"]),
            device,
            "fp32",
            training=bool(named["is_training"]),
            optimizer_ms=update_ms if named["is_training"] else 0.0,
        )
        found.append(1 / (1 + np.exp(-(level + slope * np.log(busy)))))
    return np.array(found)


def law() -> SaturationLaw:
    return SaturationLaw(COLUMNS, DEVICE_TYPES[A100])


def test_rows_that_follow_the_public_law_are_answered_as_a_device_without_measurements() -> None:
    taught, asked = rows(40), rows(40, seed=1)
    found = law().fit(taught, share(taught, LAW.level, LAW.slope)).predict(asked)
    assert found == pytest.approx(share(asked, LAW.level, LAW.slope), abs=2e-3)


def test_few_rows_move_the_law_a_little_and_hundreds_all_the_way() -> None:
    asked, level = rows(200, seed=1), LAW.level + 1.5
    other = share(asked, level, LAW.slope)
    errors = []
    for count in (4, 40, 1_000):
        taught = rows(count, seed=2)
        errors.append(float(np.abs(law().fit(taught, share(taught, level, LAW.slope)).predict(asked) - other).mean()))
    public = float(np.abs(share(asked, LAW.level, LAW.slope) - other).mean())
    assert public > errors[0] > errors[1] > errors[2]
    assert errors[0] > public / 2
    assert errors[2] < public / 20


def test_more_work_is_never_expected_to_use_less_of_the_device() -> None:
    taught = rows(60)
    model = law().fit(taught, 1.0 - share(taught, LAW.level, LAW.slope))  # rows that say the contrary
    asked = np.repeat(rows(1), 30, axis=0)
    asked[:, COLUMNS.index("log_flops")] = np.linspace(15, 35, 30)
    assert np.all(np.diff(model.predict(asked)) >= -1e-9)


@for_each(
    "names",
    [
        (),
        ("smooth_process",),
        ("extra_trees",),
        ("boosted_trees",),
        ("ridge",),
        ("decision_tree",),
        ("smooth_process", "extra_trees"),
        ("boosted_trees", "boosted_trees", "ridge"),
    ],
)
def test_law_and_corrections_are_served_as_one_file_that_answers_as_all(names: tuple[str, ...]) -> None:
    taught, asked = rows(60), rows(50, seed=3)
    measured = share(taught, LAW.level + 0.5, 0.6) * (0.8 + 0.2 * taught[:, COLUMNS.index("movement_time_ratio")])
    corrections = [CANDIDATES[name](seed) for seed, name in enumerate(names)]
    model = SaturationLaw(COLUMNS, DEVICE_TYPES[A100], *corrections).fit(taught, measured)
    content = prove(model.to_onnx, golden_of(taught, model.predict), str(names))
    assert OnnxModel(content).predict(asked) == pytest.approx(model.predict(asked), abs=2e-4)
    assert content == model.to_onnx()


def test_a_correction_that_knows_nothing_leaves_the_law() -> None:
    taught, asked = rows(40), rows(20, seed=4)
    measured = share(taught, LAW.level, LAW.slope)
    corrected = SaturationLaw(COLUMNS, DEVICE_TYPES[A100], CANDIDATES["constant_correction"](0)).fit(taught, measured)
    assert corrected.predict(asked) == pytest.approx(law().fit(taught, measured).predict(asked), abs=2e-3)


def test_the_mean_of_corrections_counts() -> None:
    taught, asked = rows(60), rows(20, seed=3)
    measured = share(taught, LAW.level, LAW.slope) * (0.8 + 0.2 * taught[:, COLUMNS.index("movement_time_ratio")])

    def answer(*names: str) -> FloatArray:
        corrections = [CANDIDATES[name](0) for name in names]
        return SaturationLaw(COLUMNS, DEVICE_TYPES[A100], *corrections).fit(taught, measured).predict(asked)

    mean = (answer("extra_trees") + answer("smooth_process")) / 2
    assert answer("extra_trees", "smooth_process") == pytest.approx(mean)


def candidates(target: Target, device: str, *, is_public: bool = False) -> list[str]:
    return list(list_candidates(target, device, is_public=is_public, is_of_all_types=False))


@for_each("is_public", [False, True])
def test_utilization_of_a_gpu_starts_from_the_law(is_public: bool) -> None:
    assert LAW_NAME in candidates(UTILIZATION, A100, is_public=is_public)
    # A forest is no candidate of models that come with the program, so that neither is a mean with it.
    assert (MEAN_CORRECTION in candidates(UTILIZATION, A100, is_public=is_public)) is not is_public
    incumbent = incumbent_of(UTILIZATION, A100, GROUPS, is_of_all_types=False)
    assert incumbent is not None
    assert incumbent.name == LAW_NAME


@pytest.mark.parametrize(
    ("target", "device"),
    [
        (UTILIZATION, "a device of no table"),
        (SM_ACTIVITY, STANDIN_DEVICE),
        (SM_ACTIVITY, A100),
        (MEMORY, A100),
        (STEP, A100),
    ],
)
def test_nothing_else_does(target: Target, device: str) -> None:
    assert candidates(target, device) == list(CANDIDATES)
    assert incumbent_of(target, device, GROUPS, is_of_all_types=False) is None
