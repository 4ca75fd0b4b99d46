"""leave-cluster: a node changes its cluster because a person says so."""

from __future__ import annotations

from pathlib import Path

from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.errors import OperatorError
from cotenant_agent.storage.state_directory import AttemptDirectory, StateDirectory

_NAMED_MAX = 5


def leave_cluster(state_dir: Path) -> str:
    """Let the node of a state directory join whatever cluster its agent meets next; checkpoints stay where they are.

    Returns:
        The incarnation that was left; empty = the node belonged to none.

    Raises:
        OperatorError: an agent uses the directory, or jobs of the cluster still run.
    """
    if not state_dir.is_dir():
        raise OperatorError(f"{state_dir} is no directory; name the --state-dir of this node's agent")
    directory = StateDirectory(state_dir)
    try:
        running = [one.path.name for one in directory.attempts() if _runs(one)]
        if running:
            named = ", ".join(running[:_NAMED_MAX]) + (" ..." if len(running) > _NAMED_MAX else "")
            raise OperatorError(
                f"jobs of its cluster still run on this node ({named}): without an agent they end when their lease is "
                "over, in about a minute; then leave again"
            )
        membership = ClusterMembership(directory.cluster)
        left = membership.seen.incarnation_id
        membership.leave()
        return left
    finally:
        directory.close()


def _runs(attempt: AttemptDirectory) -> bool:
    """Whether a shim keeps the attempt; none can begin to while this process holds the directory."""
    if attempt.exit.exists() or attempt.stored.exists():
        return False
    with attempt.taken() as is_free:
        return not is_free
