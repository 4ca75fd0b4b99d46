"""What can be wrong with the files of a run under Pollux' rules."""

from __future__ import annotations

from cotenant_simulator.errors import InputError


class PolluxRulesError(InputError):
    """A run under Pollux' rules cannot go on; the message names cause and remedy."""


class ProfileError(PolluxRulesError):
    """The measured profiles are incomplete or unreadable."""


class WorkloadError(PolluxRulesError):
    """The workload is unreadable, or asks for what the profiles or the cluster do not have."""


class ClusterShapeError(PolluxRulesError):
    """The cluster is not of the form NODESxGPUS."""
