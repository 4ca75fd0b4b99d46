"""Which kinds of generated CNNs are judged."""

from __future__ import annotations

import pytest

from benchmarks.served_memory import UnknownKindError, choose_kinds

ARCHITECTURES = ("cnn_gradual", "cnn_dense", "cnn_uniform")


def test_all_kinds_are_judged_where_none_is_named() -> None:
    assert choose_kinds(ARCHITECTURES, []) == ["cnn_dense", "cnn_gradual", "cnn_uniform"]
    assert choose_kinds(ARCHITECTURES, ["uniform", "dense"]) == ["cnn_dense", "cnn_uniform"]


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownKindError, match="no kind dens, unknown; there are: dense, gradual, uniform"):
        choose_kinds(ARCHITECTURES, ["unknown", "dense", "dens"])
