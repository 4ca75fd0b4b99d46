"""What networks that were measured add to the time of a step: all of it on the spot, nothing far away."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.cross_device.known_networks import NO_NETWORKS, KnownNetworks

NETWORKS = KnownNetworks(points=np.array([[0.0, 0.0], [3.0, 0.0]]), logs=np.array([0.5, -0.4]))


def test_a_measured_network_has_all_of_it_and_a_far_one_none() -> None:
    found = NETWORKS.log_ratio(np.array([[0.0, 0.0], [3.0, 0.0], [1.5, 0.0], [50.0, 50.0]]))
    assert found == pytest.approx([0.5, -0.4, 0.0, 0.0], abs=1e-6)


def test_it_fades_without_a_jump() -> None:
    line = np.column_stack([np.linspace(0.0, 3.0, 600), np.zeros(600)])
    assert np.abs(np.diff(NETWORKS.log_ratio(line))).max() < 0.02


def test_a_row_is_the_same_alone_and_among_others() -> None:
    rows = np.random.default_rng(1).normal(0, 0.2, (30, 2))
    together = NETWORKS.log_ratio(rows)
    assert all(NETWORKS.log_ratio(rows[place : place + 1])[0] == together[place] for place in range(30))


def test_without_any_network_nothing_is_added() -> None:
    assert NO_NETWORKS.log_ratio(np.ones((2, 10))).tolist() == [0.0, 0.0]


def test_the_stored_form_is_read_and_one_of_unequal_lengths_refused() -> None:
    again = KnownNetworks.from_json(NETWORKS.to_json())  # type: ignore[arg-type]
    assert again.log_ratio(np.zeros((1, 2))) == pytest.approx([0.5])
    with pytest.raises(ValueError, match="not as many"):
        KnownNetworks.from_json({"points": [[1.0]], "logs": [1.0, 2.0]})
