"""An agent of today takes over what an earlier one has left: a live attempt, and an end that nobody was told."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.processes import LinuxProcesses
from tests.goldens import agent_state
from tests.goldens.write_goldens import GOLDENS
from tests.support.agent import AgentProcess, prepare_baseline, wait_until
from tests.support.fake_scheduler import FakeScheduler, key


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    """A process that plays the live job; its parent, this test, plays the shim."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def adopted(tmp_path: Path, job: subprocess.Popen[bytes]) -> Iterator[tuple[FakeScheduler, Path]]:
    """An agent that found the golden, and its scheduler."""
    state = tmp_path / "state"
    prepare_baseline(state)
    shim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    identities = [LinuxProcesses().identify(process.pid) for process in (shim, job)]
    assert all(identities)
    starts = [(one.pid, one.start_ticks) for one in identities if one is not None]
    agent_state.lay_out(GOLDENS / "agent", state, shim=starts[0], job=starts[1])
    with (state / "jobs" / f"{agent_state.LIVE}.1" / "lock").open("w") as lock, FakeScheduler() as scheduler:
        fcntl.flock(lock, fcntl.LOCK_EX)
        agent = AgentProcess(state, scheduler)
        try:
            yield scheduler, state
        finally:
            agent.kill()
            shim.kill()
            shim.wait()


def test_what_an_earlier_agent_left_is_told_in_the_first_message(adopted: tuple[FakeScheduler, Path]) -> None:
    scheduler, _ = adopted
    attempts = {item.key.job_id: item for item in scheduler.wait_for_hello().attempts}
    live, ended = attempts[agent_state.LIVE], attempts[agent_state.ENDED]
    assert (live.state, list(live.gpu_ids)) == (messages.ATTEMPT_STATE_RUNNING, ["standin-node-a-0"])
    assert live.key == key(agent_state.LIVE)
    assert live.steps_done >= 1
    assert ended.state == messages.ATTEMPT_STATE_ENDED
    assert (ended.exited.exit_class, ended.exited.exit_code, ended.exited.steps_done) == ("done", 0, 40)


def test_the_shim_of_an_earlier_version_reads_leases_and_stops(adopted: tuple[FakeScheduler, Path]) -> None:
    scheduler, state = adopted
    scheduler.wait_for_hello()
    folder = state / "jobs" / f"{agent_state.LIVE}.1"
    before = json.loads((folder / "lease.json").read_text())
    scheduler.wait_for_observation(agent_state.LIVE, lambda item: True)
    scheduler.send(stop_job=messages.StopJob(key=key(agent_state.LIVE), cause="cancelled", grace_ms=700))
    wait_until((folder / "stop.json").exists, "the stop is written")
    stop, lease = (json.loads((folder / name).read_text()) for name in ("stop.json", "lease.json"))
    assert (stop["cause"], stop["grace_ms"]) == ("cancelled", 700)
    assert before.keys() <= lease.keys()
    assert isinstance(lease["deadline_boot_ms"], int)
