"""How the model of step times on all device types is learned, and that the committed one was."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from predictor_service.cross_device.known_networks import NO_NETWORKS
from predictor_service.cross_device.step_model import (
    CrossDeviceStep,
    fold_of_family,
    load_step_folds,
    load_step_model,
)
from predictor_service.cross_device.step_physics import COEFFICIENTS, PRIORS, StepKind, step_parts, terms_of
from predictor_service.cross_device.step_work import work_of_facts
from predictor_service.errors import TrainingDataError
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.learning import cross_device_coefficients
from predictor_service.learning.cross_device_fit import (
    find_unseen_widths,
    find_widths,
    fit_step_folds,
    fit_step_model,
)
from predictor_service.learning.cross_device_rows import (
    StepRow,
    hash_rows,
    read_step_rows,
    rows_of_common_networks,
    thin_rows,
    work_of_rows,
)
from predictor_service.regressors.interface import FloatArray
from predictor_service.settings import default_datasets_dir

CARDS = ("NVIDIA TITAN V", "NVIDIA TITAN RTX", "NVIDIA TITAN Xp", "NVIDIA GeForce RTX 3090")
RELATIVES = (
    "Tesla V100-SXM2-16GB",
    "Tesla T4",
    "NVIDIA GeForce RTX 5090",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
)
TRUTH = np.log([prior.typical for prior in PRIORS.values()])


def invented_rows(card: str, seed: int, host_log: float = 0.0, count: int = 40) -> list[StepRow]:
    """Steps that physics times with typical coefficients, a host of their own and 5 % of noise."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        macs, nodes = float(10 ** generator.uniform(8, 10)), float(generator.integers(30, 600))
        facts = {
            "forward_macs_per_sample": macs, "convolution_macs_per_sample": 0.9 * macs, "nodes": nodes,
            "parameters": float(10 ** generator.uniform(6, 8)), "traffic_bytes_per_sample": 0.05 * macs,
            "traffic_bytes_constant": 0.0,
        }  # fmt: skip
        kind = StepKind(
            device=DEVICE_TYPES[card],
            precision="fp16" if number % 2 else "fp32",
            is_training=bool(number % 3),
        )
        rows.append(
            StepRow(
                set_name="invented", machine=f"m{card}", device=card, architecture=f"net{number}",
                family=f"net{number}", kind=kind,
                facts=facts, batch=int(2 ** generator.integers(0, 7)), step_ms=1.0,
            )
        )  # fmt: skip
    parts = step_parts(terms_of(work_of_rows(rows), [row.kind for row in rows]), TRUTH, host_log)
    noise = np.exp(generator.normal(0, 0.05, len(rows)))
    return [
        dataclasses.replace(row, step_ms=float(each))
        for row, each in zip(rows, parts.total_ms * noise, strict=True)
    ]  # fmt: skip


def log_errors(model: CrossDeviceStep, rows: Sequence[StepRow]) -> FloatArray:
    """Logarithms of measured over expected."""
    expected = model.time_ms(work_of_rows(rows), [row.kind for row in rows])
    return np.asarray(np.log([row.step_ms for row in rows]) - np.log(expected), dtype=np.float64)


@cache
def taught() -> CrossDeviceStep:
    rows = [row for seed, card in enumerate(CARDS[1:]) for row in invented_rows(card, seed)]
    return fit_step_model(rows, with_widths=False)


def test_a_device_that_taught_nothing_is_timed_as_those_that_did() -> None:
    errors = log_errors(taught(), invented_rows(CARDS[0], seed=9))
    assert np.abs(errors).mean() < 0.15


def test_a_machine_with_a_slow_host_does_not_make_its_device_look_slow() -> None:
    slow = [row for seed, card in enumerate(CARDS[1:]) for row in invented_rows(card, seed, host_log=0.8 * (seed == 0))]
    model = fit_step_model(slow, with_widths=False)
    assert np.abs(log_errors(model, invented_rows(CARDS[0], seed=9))).mean() < 0.2


def test_a_script_that_reads_its_input_in_every_step_does_not_make_small_networks_look_slow() -> None:
    rows = [row for seed, card in enumerate(CARDS[1:]) for row in invented_rows(card, seed)]
    slow = [dataclasses.replace(row, step_ms=row.step_ms + 20.0) if row.device == CARDS[1] else row for row in rows]
    model, left_out = fit_step_model(slow, with_widths=False), invented_rows(CARDS[0], seed=9)
    small = sorted(left_out, key=lambda row: row.step_ms)[:8]
    assert np.abs(log_errors(model, small)).mean() < 0.25


@pytest.mark.endurance
def test_the_search_comes_to_rest_where_products_run_at_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public rows take products to the efficiency that none exceeds: beyond it their coefficient tells nothing."""
    logs = []
    for rounds in (30, 41):
        monkeypatch.setattr(cross_device_coefficients, "_ROUNDS", rounds)
        logs.append(fit_step_model(public_rows(), with_widths=False).logs)
    assert logs[0] == pytest.approx(logs[1], abs=1e-3)


def test_a_script_that_copies_more_input_in_32_bits_bends_no_small_network() -> None:
    rows = [row for seed, card in enumerate(CARDS[1:]) for row in invented_rows(card, seed)]
    slow = [dataclasses.replace(row, step_ms=row.step_ms + 20.0 * (row.kind.precision == "fp32")) for row in rows]
    model, left_out = fit_step_model(slow, with_widths=False), invented_rows(CARDS[0], seed=9)
    small = sorted(left_out, key=lambda row: row.step_ms)[:16]
    assert {row.kind.precision for row in small} == {"fp16", "fp32"}
    assert np.abs(log_errors(model, small)).mean() < 0.16


def test_widths_are_those_of_devices_left_out_and_not_of_rows_that_taught() -> None:
    alike = [row for seed, card in enumerate(CARDS) for row in invented_rows(card, seed)]
    odd = [
        dataclasses.replace(row, step_ms=3 * row.step_ms) if row.device == CARDS[0] else row for row in alike
    ]  # fmt: skip
    narrow, wide = (float(find_widths(rows)["convolutional"][1, 5]) for rows in (alike, odd))
    assert narrow < 0.35
    assert wide > 0.8


def test_ranges_reach_farther_up_where_some_labs_are_slow_and_none_is_fast() -> None:
    alike = [row for seed, card in enumerate((*CARDS, *RELATIVES)) for row in invented_rows(card, seed)]
    slow = [dataclasses.replace(row, step_ms=2 * row.step_ms) if row.device == CARDS[0] else row for row in alike]
    fast = [dataclasses.replace(row, step_ms=row.step_ms / 2) if row.device == CARDS[0] else row for row in alike]
    (below, above), (under, over) = (find_widths(rows)["convolutional"][:, 5] for rows in (slow, fast))
    assert above > 1.3 * below
    assert under > 1.3 * over


def test_a_card_without_relatives_widens_the_ranges_of_generations_that_nobody_measured_and_no_others() -> None:
    alike = [row for seed, card in enumerate((*CARDS, *RELATIVES)) for row in invented_rows(card, seed)]
    rows = [dataclasses.replace(row, step_ms=3 * row.step_ms) if row.device == CARDS[3] else row for row in alike]
    known, unseen = (float(find(rows)["convolutional"][1, 5]) for find in (find_widths, find_unseen_widths))
    assert known < 0.35
    assert unseen > 0.8


def test_campaigns_of_one_set_on_one_device_are_one_witness_of_it() -> None:
    """Rows that were slow for the set's own reason must not look like those of a slow generation the more there are."""

    def error(campaigns: int) -> float:
        slow = [
            dataclasses.replace(row, machine=f"{row.machine}|{campaign}", step_ms=2 * row.step_ms)
            for campaign in range(campaigns)
            for row in invented_rows("Tesla V100-SXM2-16GB", seed=50 + campaign, count=40 // campaigns)
        ]
        others = [row for seed, card in enumerate(CARDS[1:]) for row in invented_rows(card, seed)]
        model = fit_step_model([*others, *slow], with_widths=False)
        return float(np.median(log_errors(model, invented_rows(CARDS[0], seed=9))))

    assert error(campaigns=4) == pytest.approx(error(campaigns=1), abs=0.05)


def test_a_device_with_many_rows_weighs_as_much_as_one_with_few() -> None:
    few = [row for seed, card in enumerate(CARDS) for row in invented_rows(card, seed, count=12)]
    many = [*few, *(row for seed in range(10, 16) for row in invented_rows(CARDS[1], seed))]
    odd = [dataclasses.replace(row, step_ms=3 * row.step_ms) if row.device == CARDS[0] else row for row in many]
    assert float(find_widths(odd)["convolutional"][1, 5]) > 0.8


def typical_error(model: CrossDeviceStep, rows: list[StepRow]) -> float:
    """With what all rows are off by taken out; a few small steps, of which a script may be a part, do not count."""
    errors = log_errors(model, rows)
    return float(np.median(np.abs(errors - np.median(errors))))


def test_what_a_network_takes_on_other_devices_is_expected_of_it_on_one_that_nobody_measured() -> None:
    """Two in five networks take twice what their operators say, whatever the device."""
    slow = {f"net{number}" for number in range(40) if number % 5 in {0, 3}}

    def rows_of(card: str) -> list[StepRow]:
        plain = invented_rows(card, seed=3)  # the same networks on every card
        return [dataclasses.replace(row, step_ms=row.step_ms * (2 if row.architecture in slow else 1)) for row in plain]

    model = fit_step_model([row for card in CARDS[1:] for row in rows_of(card)], with_widths=False)
    without = dataclasses.replace(model, networks=NO_NETWORKS)
    left_out = rows_of(CARDS[0])
    assert typical_error(model, left_out) < 0.5 * typical_error(without, left_out)
    strangers = invented_rows(CARDS[0], seed=77)
    added = np.abs(log_errors(model, strangers) - log_errors(without, strangers))
    assert np.median(added) < 0.02


@cache
def public_rows() -> tuple[StepRow, ...]:
    return tuple(thin_rows(read_step_rows(default_datasets_dir() / "public")))


@cache
def common_rows() -> tuple[StepRow, ...]:
    return tuple(rows_of_common_networks(read_step_rows(default_datasets_dir() / "public")))


def test_the_committed_model_was_made_from_the_rows_that_come_with_the_program() -> None:
    """Where this fails: python -m predictor_service train-cross-device."""
    committed = load_step_model()
    assert committed.rows_sha256 == hash_rows(public_rows())
    assert set(committed.devices) == {row.device for row in public_rows()}
    again = fit_step_model(public_rows(), networks=common_rows(), with_widths=False)
    for name, ours, stored in zip(COEFFICIENTS, again.logs, committed.logs, strict=True):
        assert ours == pytest.approx(stored, abs=1e-3), name
    assert again.correction.weights == pytest.approx(committed.correction.weights, abs=1e-2)
    assert again.networks.logs == pytest.approx(committed.networks.logs, abs=1e-2)


def test_the_committed_models_without_a_fifth_of_the_families_are_those_of_the_same_rows() -> None:
    """Where this fails: python -m predictor_service train-cross-device."""
    for fold, (again, committed) in enumerate(zip(fit_step_folds(public_rows()), load_step_folds(), strict=True)):
        left_in = [row for row in public_rows() if fold_of_family(row.family) != fold]
        assert committed.rows_sha256 == hash_rows(left_in)
        assert again.logs == pytest.approx(committed.logs, abs=1e-3)
        assert again.correction.weights == pytest.approx(committed.correction.weights, abs=1e-2)
        assert len(left_in) < len(public_rows())


def test_rows_of_several_devices_slices_and_flagged_ones_teach_nothing() -> None:
    rows = public_rows()
    assert not any("MIG" in row.device for row in rows)
    assert {row.set_name for row in rows} == {"gavel", "pollux", "salus", "timm_bench", "torchvision_bench"}
    assert not any(row.set_name == "gavel" and row.architecture == "A3C" for row in rows)
    assert not any(row.set_name == "pollux" and row.architecture == "yolov3" for row in rows)


def test_the_work_of_rows_is_that_of_their_figures() -> None:
    rows = public_rows()[:3]
    counted, kept = work_of_facts([(row.facts, row.batch) for row in rows]), work_of_rows(rows)
    assert counted is not None
    assert kept.traffic_bytes.tolist() == counted.traffic_bytes.tolist()
    assert kept.batch.tolist() == [row.batch for row in rows]


def test_a_folder_without_the_sets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError):
        read_step_rows(tmp_path)
