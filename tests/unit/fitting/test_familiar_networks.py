"""Networks of known families have the 99 % bound that held-out networks taught; others are flagged."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from cotenant.profile_schema import SoloRow
from predictor_service.features.devices import STANDIN_DEVICE
from predictor_service.features.job_features import FEATURE_INDEX, FEATURES
from predictor_service.fitting import competition
from predictor_service.fitting.familiar_networks import FamiliarRows, learn_familiar
from predictor_service.fitting.fit import FittedTarget, fit_rows
from predictor_service.fitting.known_rows import read_known_rows
from predictor_service.importers.imported_set import features_json, job_key, solo_row
from predictor_service.inference.unusual_features import find_unusual
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import read_profiles
from predictor_service.registry.manifest import Manifest
from predictor_service.registry.onnx_model import OnnxModel
from predictor_service.registry.spread_record import spread_from_json, spread_to_json
from predictor_service.registry.version_store import VersionStore
from predictor_service.regressors.candidates import CANDIDATES
from predictor_service.retraining.datasets import read_dataset
from predictor_service.retraining.training import LEVEL, train_version
from predictor_service.selection.targets import MEMORY
from tests.support.few_candidates import few_candidates
from tests.support.sealed_version import sealed
from tests.support.table_dataset import DEVICE, write_table_dataset

OPERATORS = ("convolution", "matrix_multiply", "normalization", "activation", "pooling", "elementwise", "movement")
FAMILIES = 6
NETWORKS = 130


def invented_rows(
    networks: int = NETWORKS, seed: int = 0, families: tuple[int, ...] = tuple(range(FAMILIES))
) -> list[SoloRow]:
    """Networks of a few families, each of which holds more or less memory than is counted, alike within 3 %."""
    random, rows = np.random.default_rng(seed), []
    for number in range(networks):
        family = families[number % len(families)]
        mix = np.random.default_rng(100 + family)
        shares, factor = mix.dirichlet(np.ones(len(OPERATORS))), float(np.exp(0.4 * mix.standard_normal()))
        depth, width = int(random.integers(4, 12)), float(10 ** random.uniform(5, 6))
        counts = {
            f"{name}_nodes": float(max(1, round(share * 25 * depth)))
            for name, share in zip(OPERATORS, shares, strict=True)
        }
        figures = {
            **counts,
            "nodes": sum(counts.values()),
            "parameters": 5.0 * depth * width,
            "forward_macs_per_sample": 900.0 * depth * width,
            "saved_for_backward_bytes_per_sample": 8.0 * depth * width,
            "widest_activation_bytes_per_sample": width,
            "input_bytes_per_sample": 6e5,
        }  # fmt: skip
        held = 8 * 8.0 * depth * width + 16 * 5.0 * depth * width + 5e8
        name = f"net{seed}_{family}_{number}"
        rows.append(
            dataclasses.replace(
                solo_row(
                    run_id=name,
                    campaign="invented",
                    device=DEVICE,
                    job_key=job_key("invented", name, 8),
                    architecture=name,
                    family=f"family{family}",
                    batch=8,
                    optimizer="adam",
                    features_json=features_json({"batch_size": 8}, figures),
                ),
                memory_peak_bytes=int(held * factor * np.exp(0.03 * random.standard_normal())),
                memory_context_bytes=0,
            )
        )
    return rows


def task_of(rows: list[SoloRow]) -> LearningTask:
    folder = Path(mkdtemp(prefix="cotenant-test-familiar-"))
    write_table_dataset(folder, rows)
    return read_learning_task(read_profiles(folder), MEMORY, DEVICE).learning_task


@cache
def fitted(networks: int = NETWORKS) -> FittedTarget:
    with few_candidates():
        return fit_rows(task_of(invented_rows(networks)), LEVEL, seed=0)


def test_the_bound_of_a_new_network_of_a_known_family_is_that_of_networks_held_out() -> None:
    relatives = task_of(invented_rows(60, seed=1))
    answered = fitted().predict(relatives)
    wide = dataclasses.replace(fitted(), record=dataclasses.replace(fitted().record, familiar=None)).predict(relatives)
    near = answered.in_domain
    assert near.mean() > 0.7
    ratio, ratio_before = (each.upper_99[near] / relatives.measured[near] for each in (answered, wide))
    assert ratio.mean() < 0.75 * ratio_before.mean()
    assert (ratio >= 1).mean() > 0.95
    assert (answered.upper_99 <= wide.upper_99 * (1 + 1e-9)).all()


def test_no_interval_of_a_familiar_network_reaches_above_its_bound() -> None:
    """Families held out teach the interval, networks held out the bound, and families differ by more."""
    relatives = task_of(invented_rows(60, seed=1))
    answered = fitted().predict(relatives)
    held = (answered.lower_90 <= relatives.measured) & (relatives.measured <= answered.upper_90)
    assert (answered.upper_90 <= answered.upper_99 * (1 + 1e-12)).all()
    assert (answered.value <= answered.upper_90).all()
    assert held[answered.in_domain].mean() >= 0.9


def test_a_network_of_other_operators_is_flagged_and_gets_a_bound_as_much_wider_as_it_is_strange() -> None:
    strangers = task_of(invented_rows(40, seed=2, families=(11, 12, 13, 14)))
    record, answered = fitted().record, fitted().predict(strangers)
    assert record.familiar is not None
    as_familiar = dataclasses.replace(record, familiar=dataclasses.replace(record.familiar, strangers_margin=0.0))
    narrow = dataclasses.replace(fitted(), record=as_familiar).predict(strangers)
    features = read_known_rows(strangers).features
    assert features is not None
    novelty = fitted().served.network_novelty(features)
    assert novelty is not None
    assert answered.in_domain.mean() < 0.2
    assert novelty.mean() > 0.5
    assert (answered.upper_99 >= narrow.upper_99).all()
    assert (answered.upper_99 > narrow.upper_99 * 1.01)[novelty > 0.5].mean() > 0.9


def test_a_record_that_knows_nothing_of_strangers_leaves_them_the_bound_of_families_held_out() -> None:
    strangers = task_of(invented_rows(40, seed=2, families=(11, 12, 13, 14)))
    record = fitted().record
    assert record.familiar is not None
    assert record.operator_mix is not None
    step = dataclasses.replace(record.operator_mix, near=0.0, far=0.0)  # all are wholly strange
    before = dataclasses.replace(record.familiar, strangers_margin=None)
    old = dataclasses.replace(fitted(), record=dataclasses.replace(record, familiar=before, operator_mix=step))
    wide = dataclasses.replace(fitted(), record=dataclasses.replace(record, familiar=None))
    assert old.predict(strangers).upper_99 == pytest.approx(wide.predict(strangers).upper_99)


def test_no_interval_of_a_stranger_reaches_above_its_bound_where_networks_taught_it() -> None:
    strangers = task_of(invented_rows(40, seed=2, families=(11, 12, 13, 14)))
    answered = fitted().predict(strangers)

    assert (answered.upper_90 <= answered.upper_99 * (1 + 1e-12)).all()


def test_what_is_strange_about_a_network_is_named_by_its_operators() -> None:
    rows = read_known_rows(task_of(invented_rows(40, seed=2, families=(11,))))
    assert rows.features is not None
    served = fitted().served
    familiar = served.is_familiar(rows.features)
    assert familiar is not None
    place = int(np.flatnonzero(~familiar)[0])
    found = find_unusual(served, rows.features[place], "fp32", is_familiar=False)
    assert any("nearest measured network" in text for text in found.texts) or found.is_beyond


def test_too_few_networks_for_ninety_nine_per_cent_leave_the_bound_as_it_was() -> None:
    record = fitted(80).record
    assert record.operator_mix is not None
    assert record.familiar is None
    assert record.spread is None or record.spread.bound is None


def rows_that_only_operators_tell_apart(bound_names: tuple[str, ...]) -> FamiliarRows:
    """Of two sizes of errors, which no column of the target shows, and one of the bound does."""
    random, networks = np.random.default_rng(0), 130
    features = np.zeros((2 * networks, len(FEATURES)))
    features[:, FEATURE_INDEX["log_parameters"]] = np.repeat(np.arange(networks), 2)
    is_wild = np.repeat(np.arange(networks) % 5 == 0, 2)
    features[:, FEATURE_INDEX["log_unfolded_bytes"]] = 10.0 * is_wild
    return FamiliarRows(
        columns=random.normal(size=(2 * networks, 2)).astype(np.float32),
        encoded=random.normal(0.0, np.where(is_wild, 0.5, 0.01)),
        features=features,
        bound_names=bound_names,
    )


def test_what_a_bound_sees_beyond_the_columns_of_its_target_narrows_it_where_errors_are_small() -> None:
    ridge, costs = CANDIDATES["ridge"], []
    for names in ((), ("log_unfolded_bytes",)):
        rows = rows_that_only_operators_tell_apart(names)
        found = learn_familiar(rows, ridge, {}, seed=0, file_name="familiar.onnx")
        assert found is not None
        record, files = found
        assert record.columns == names
        assert spread_from_json(spread_to_json(record)) == record
        spread = OnnxModel(files[record.file_name]).predict(rows.bound_columns)
        offset = np.clip(spread, record.lowest, record.highest) ** record.exponent * record.scores.upper_offset(0.99)
        assert np.mean(rows.encoded <= offset + 0.05) > 0.98
        costs.append(float(np.exp(offset).mean()))
    assert costs[1] < 0.75 * costs[0]


def test_the_bound_may_be_that_of_a_second_model_alone() -> None:
    rows = rows_that_only_operators_tell_apart(("log_unfolded_bytes",))
    shifted = dataclasses.replace(rows, encoded=rows.features[:, FEATURE_INDEX["log_unfolded_bytes"]] + rows.encoded)
    found = learn_familiar(
        shifted, CANDIDATES["ridge"], {"trees": CANDIDATES["decision_tree"]}, seed=0, file_name="familiar.onnx"
    )
    assert found is not None
    assert found[0].partner is not None
    assert found[0].partner_weight == 1.0
    assert spread_from_json(spread_to_json(found[0])) == found[0]


def test_spreads_of_before_are_written_as_they_were() -> None:
    rows = rows_that_only_operators_tell_apart(())
    found = learn_familiar(rows, CANDIDATES["ridge"], {}, seed=0, file_name="familiar.onnx")
    assert found is not None
    assert not spread_to_json(found[0]).keys() & {"columns", "partner", "partner_weight"}


def test_a_stored_version_bounds_as_the_one_that_was_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competition, "CANDIDATES", {"ridge": CANDIDATES["ridge"]})
    write_table_dataset(tmp_path / "set", invented_rows())
    trained = train_version([read_dataset(tmp_path / "set")], seed=0)
    store = VersionStore(tmp_path / "models")
    store.add(trained.manifest, trained.files)
    store.activate(trained.manifest.version)
    again = Manifest.from_json(trained.manifest.to_json())
    assert again.to_json() == trained.manifest.to_json()
    served = store.load(trained.manifest.version).devices[DEVICE][MEMORY.name]
    assert served.record.file_names == tuple(name for name in served.record.file_names if name in trained.files)
    assert len(served.record.file_names) >= 2
    assert "of all others the 99 % bound" in store.card(trained.manifest.version)


def test_versions_of_before_have_nothing_between_known_and_strange_networks() -> None:
    record = fitted().record
    assert record.operator_mix is not None
    reached = record.operator_mix.distance_max
    step = dataclasses.replace(record, operator_mix=dataclasses.replace(record.operator_mix, near=reached, far=reached))
    stored = sealed(step).to_json()
    assert json.loads(stored)["targets"][STANDIN_DEVICE][MEMORY.name]["operator_mix"].keys() == {
        "networks",
        "distance_max",
    }
    mix = Manifest.from_json(stored).targets[STANDIN_DEVICE][MEMORY.name].operator_mix
    assert mix is not None
    assert mix.near == mix.far == reached
