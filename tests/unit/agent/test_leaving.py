"""A node leaves its cluster by a person's word, and only when nothing of it runs there."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.errors import OperatorError, StateDirectoryBusyError
from cotenant_agent.leaving import leave_cluster
from cotenant_agent.records import AttemptKey, LogPosition
from cotenant_agent.storage.state_directory import AttemptDirectory, StateDirectory

OWN = "a" * 32
KEY = AttemptKey(job_id="job-1", attempt=1, fence=1, incarnation_id=OWN)


def member(root: Path) -> AttemptDirectory:
    """A node of a cluster with one attempt; nobody uses its folder."""
    directory = StateDirectory(root)
    ClusterMembership(directory.cluster).join(LogPosition(incarnation_id=OWN), (), is_free=False)
    attempt = directory.create(KEY)
    directory.close()
    return attempt


def test_a_node_whose_attempts_have_ended_leaves(tmp_path: Path) -> None:
    member(tmp_path)
    assert leave_cluster(tmp_path) == OWN
    assert ClusterMembership(tmp_path / "cluster.json").lineage == ()
    assert leave_cluster(tmp_path) == ""


def test_a_node_whose_attempt_runs_does_not(tmp_path: Path) -> None:
    attempt = member(tmp_path)
    shim = os.open(attempt.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(shim, fcntl.LOCK_EX)
    try:
        with pytest.raises(OperatorError, match=r"job-1\.1\.aaaaaaaa"):
            leave_cluster(tmp_path)
    finally:
        os.close(shim)
    assert ClusterMembership(tmp_path / "cluster.json").lineage == (OWN,)


def test_a_folder_that_an_agent_uses_is_left_alone(tmp_path: Path) -> None:
    member(tmp_path)
    directory = StateDirectory(tmp_path)
    try:
        with pytest.raises(StateDirectoryBusyError):
            leave_cluster(tmp_path)
    finally:
        directory.close()


def test_a_folder_that_is_none_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="--state-dir"):
        leave_cluster(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
