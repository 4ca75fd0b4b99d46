"""An agent's first start on a device measures it, and no job waits for that.

That it comes to its end beside other load is what the demo shows (`test_demo.py`), and that a second start remembers
`tests/unit/agent/test_calibrations.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cotenant.device_calibration import NOT_YET
from cotenant.v1 import node_agent_pb2
from tests.support.agent import GPU, find_processes, running_agent, wait_until, write_script
from tests.support.fake_scheduler import FakeScheduler, launch

FLAGS = ("--calibrate", "--calibrate-despite-load")
pytestmark = pytest.mark.timeout(600)


def test_a_job_that_comes_while_the_probe_runs_starts_at_once_and_the_probe_is_gone(tmp_path: Path) -> None:
    path = write_script(tmp_path, "import time\nprint('it runs', flush=True)\ntime.sleep(2)\n")
    state = tmp_path / "state"
    with FakeScheduler() as scheduler, running_agent(state, scheduler, *FLAGS):
        (gpu,) = scheduler.wait_for_hello().gpus
        assert (gpu.HasField("calibration"), gpu.not_calibrated) == (False, NOT_YET)
        probe = str(state / "calibrations")
        wait_until(lambda: bool(find_processes(probe)), "the probe runs")
        first = set(find_processes(probe))
        scheduler.send(launch_job=launch("job", [sys.executable, path], GPU))
        scheduler.wait_for_start("job")
        assert not first & set(find_processes(probe))
        assert scheduler.wait_for_exit("job").exit_class == "done"
        # The node is free again, so it begins anew.
        wait_until(lambda: bool(set(find_processes(probe)) - first), "another probe runs")
    wait_until(lambda: not find_processes(str(state)), "nothing of the agent is left")


@pytest.mark.endurance
@pytest.mark.last_core
def test_the_probe_measures_three_networks_within_its_minute_on_a_device_that_is_free(tmp_path: Path) -> None:
    last = ("--standin-cores", str(max(os.sched_getaffinity(0))))
    with FakeScheduler() as scheduler, running_agent(tmp_path / "state", scheduler, *FLAGS, devices=last):
        gpu = scheduler.wait_for(measured_or_given_up)
    assert gpu.not_calibrated == "" or "within 60 s" in gpu.not_calibrated
    if gpu.not_calibrated or gpu.calibration.foreign_load:
        pytest.skip("other programs used the device core")
    assert [each.network for each in gpu.calibration.anchors] == ["resnet", "mlp", "lstm"]
    assert all(each.step_ms > 0 for each in gpu.calibration.anchors)


def measured_or_given_up(message: node_agent_pb2.ConnectRequest) -> node_agent_pb2.AgentGpu | None:
    """The device, once there is a record of it or a cause why there is none."""
    gpus = message.hello.gpus
    return next((gpu for gpu in gpus if gpu.HasField("calibration") or gpu.not_calibrated not in ("", NOT_YET)), None)
