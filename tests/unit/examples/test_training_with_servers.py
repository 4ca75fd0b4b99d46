"""A training with parameter servers is the training of one process: forked workers and servers over gloo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cotenant.parameter_assignment import assign_parameters
from examples.training import train_with_servers
from examples.training.train_with_servers import read_places
from tests.support.gang_attempts import GangAttempts

STEPS = 8
FLAGS = ["--model", "cnn", "--batch-size", "6", "--log-every", "1"]
SIZES = {"wide": 1_000, "narrow": 10, "bias": 3}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Threads of the parent are not there in a fork."""
    torch.set_num_threads(1)


def test_other_numbers_of_workers_and_servers_train_as_one_process_alone(tmp_path: Path) -> None:
    changing, alone = (GangAttempts(tmp_path / name, train_with_servers.main, FLAGS, STEPS) for name in ("many", "one"))
    alone.train(1, STEPS)
    for workers, servers, until in ((2, 1, 3), (1, 2, 6), (2, 2, STEPS)):
        changing.train(workers, until, servers=servers)
    assert changing.losses() == pytest.approx(alone.losses(), rel=1e-12, abs=0)


def test_a_server_holds_what_the_node_has_assigned_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round than PAA would have it, so that the file must have been read."""
    path = tmp_path / "assignment.json"
    blocks = {
        "wide": [{"server": 1, "offset": 0, "parameters": 400}, {"server": 0, "offset": 400, "parameters": 600}],
        "narrow": [{"server": 0, "offset": 0, "parameters": 10}],
        "bias": [{"server": 0, "offset": 0, "parameters": 3}],
    }
    path.write_text(json.dumps({"servers": 2, "blocks": blocks}))
    monkeypatch.setenv("COTENANT_PARAMETER_ASSIGNMENT", str(path))
    assert read_places(SIZES, 2)[1] == [("wide", 0, 400)]


def test_an_assignment_of_another_network_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "assignment.json"
    path.write_text(json.dumps({"servers": 2, "blocks": {"other": [{"server": 0, "offset": 0, "parameters": 5}]}}))
    monkeypatch.setenv("COTENANT_PARAMETER_ASSIGNMENT", str(path))
    held = [sum(length for _, _, length in places) for places in read_places(SIZES, 2)]
    assert (sum(held), max(held)) == (sum(SIZES.values()), max(assign_parameters(SIZES, 2).parameters))


def test_every_parameter_is_on_exactly_one_server() -> None:
    places = [place for server in read_places(SIZES, 3) for place in server]
    covered = sorted((name, number) for name, first, length in places for number in range(first, first + length))
    assert covered == sorted((name, number) for name, size in SIZES.items() for number in range(size))
