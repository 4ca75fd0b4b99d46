"""Which kinds of generated CNNs are judged, and which models answer for timm's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.served_memory import UnknownKindError, choose_kinds, learn
from tests.support.measured_dataset import DEVICE, write_dataset
from tests.support.public_package import few_candidates

ARCHITECTURES = ("cnn_gradual", "cnn_dense", "cnn_uniform")


def test_all_kinds_are_judged_where_none_is_named() -> None:
    assert choose_kinds(ARCHITECTURES, []) == ["cnn_dense", "cnn_gradual", "cnn_uniform"]
    assert choose_kinds(ARCHITECTURES, ["uniform", "dense"]) == ["cnn_dense", "cnn_uniform"]


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownKindError, match="no kind dens, unknown; there are: dense, gradual, uniform"):
        choose_kinds(ARCHITECTURES, ["unknown", "dense", "dens"])


def test_held_out_rows_are_answered_by_what_was_learned_here_and_not_by_what_comes_with_the_program(
    tmp_path: Path,
) -> None:
    write_dataset(tmp_path / "train" / "set")
    with few_candidates():
        version = learn(tmp_path / "train", tmp_path / "models")
    assert [*version.devices] == [DEVICE]
    assert not any(model.record.is_public for model in version.devices[DEVICE].values())
