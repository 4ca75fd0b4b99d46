"""An agent's first start on a device measures it, the inventory shows it, and no job waits for more than the probe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cotenant.device_calibration import NOT_YET, DeviceCalibration
from cotenant.device_calibration_message import read_calibration_message
from cotenant.system_clock import now_ms
from cotenant.v1 import node_agent_pb2 as messages
from tests.support.agent import GPU, find_processes, running_agent, wait_until, write_script
from tests.support.fake_scheduler import FakeScheduler, launch

FLAGS = ("--calibrate", "--calibrate-despite-load")
CALIBRATION_S = 240.0
pytestmark = pytest.mark.timeout(400)


def calibrated(message: messages.ConnectRequest) -> DeviceCalibration | None:
    gpus = [gpu for gpu in message.hello.gpus if gpu.HasField("calibration")]
    return read_calibration_message(gpus[0].calibration, now_ms()) if gpus else None


@pytest.mark.alone  # on a loaded device the time for calibration is over before the last network
def test_a_first_start_measures_the_stand_in_and_the_second_one_remembers(tmp_path: Path) -> None:
    with FakeScheduler() as scheduler, running_agent(tmp_path / "state", scheduler, *FLAGS):
        (gpu,) = scheduler.wait_for_hello().gpus
        assert (gpu.HasField("calibration"), gpu.not_calibrated) == (False, NOT_YET)
        measured = scheduler.wait_for(calibrated, CALIBRATION_S)
        assert measured.device == "cpu-standin"
        assert [each.network for each in measured.anchors] == ["resnet", "mlp", "lstm"]
        assert measured.rates["fp32"].matmul_flops_per_s > 1e8
    with FakeScheduler() as again, running_agent(tmp_path / "state", again, *FLAGS):
        again.wait_for_hello()
        assert again.wait_for(calibrated, 30.0) == measured


def test_a_job_that_comes_while_the_probe_runs_starts_at_once_and_the_probe_is_gone(tmp_path: Path) -> None:
    path = write_script(tmp_path, "import time\nprint('it runs', flush=True)\ntime.sleep(2)\n")
    state = tmp_path / "state"
    with FakeScheduler() as scheduler, running_agent(state, scheduler, *FLAGS):
        probe = str(state / "calibrations")
        wait_until(lambda: bool(find_processes(probe)), "the probe runs", timeout_s=60)
        first = set(find_processes(probe))
        scheduler.send(launch_job=launch("job", [sys.executable, path], GPU))
        scheduler.wait_for_start("job")
        assert not first & set(find_processes(probe))
        assert scheduler.wait_for_exit("job").exit_class == "done"
        # The node is free again, so it begins anew.
        wait_until(lambda: bool(set(find_processes(probe)) - first), "another probe runs", timeout_s=60)
    wait_until(lambda: not find_processes(str(state)), "nothing of the agent is left")
