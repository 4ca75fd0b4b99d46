"""The programs of a local cluster, forked from processes that have loaded them (see `loaded_programs`)."""

from __future__ import annotations

import os
from functools import partialmethod
from pathlib import Path

import pytest

from cotenant import local_cluster
from cotenant.local_cluster import Program
from cotenant.programs import command_line
from tests.support.loaded_programs import start_program

AGENT = "cotenant_agent"


def fork_programs(patch: pytest.MonkeyPatch, agent_program: str = AGENT) -> None:
    """Lets every `LocalCluster` of this process fork its programs, until the patch is undone.

    Args:
        patch: Is undone by the test.
        agent_program: Module that is run as the agent.
    """
    patch.setattr(local_cluster.Program, "start", partialmethod(_start, agent_program))


def _start(program: Program, agent_program: str) -> None:
    """As the cluster's own start, but without a session for each."""
    program.log_file.parent.mkdir(parents=True, exist_ok=True)
    program.ready_file.unlink(missing_ok=True)
    _, _, package, *arguments = [*command_line(program.verb), *program.arguments]
    arguments += ["--ready-file", str(program.ready_file)]
    with program.log_file.open("ab") as log:
        program.log_start_bytes = log.tell()
        program.process = start_program(  # type: ignore[assignment]
            agent_program if package == AGENT else package,
            arguments,
            folder=Path.cwd(),
            environment=os.environ,
            output=log,
            errors=log,
        )
