"""The real scheduler process among nodes that vanish, crashes and full disks."""

from __future__ import annotations

import json
import os
import random
import threading
import time
import uuid
from pathlib import Path

import grpc
import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.codec import decode_event
from scheduler_service.core.events import JobFinished, JobSubmitted, NodeLost
from tests.support.fake_agent import FakeAgent
from tests.support.grpc_errors import code_of, details_of, reason_of
from tests.support.loaded_programs import run_program
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until
from tests.support.small_disks import fill, small_disk

NO_PREDICTOR = ("--predictor", "", "--policy", "fifo")
SHORT_LEASES = ("--heartbeat-ms", "50", "--lease-ms", "3000", "--grace-ms", "500", "--progress-interval-ms", "50")


def export_log(state_dir: Path) -> list[dict[str, object]]:
    words = ["export-log", "--state-dir", str(state_dir)]
    done = run_program("scheduler_service", words, folder=Path.cwd(), environment=os.environ, timeout_s=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def nodes(client: SchedulerClient) -> list[scheduling_pb2.Node]:
    return list(client.stub.ListNodes(scheduling_pb2.ListNodesRequest(), timeout=90).nodes)


def test_a_node_is_lost_only_after_lease_and_grace_and_its_job_starts_elsewhere(tmp_path: Path) -> None:
    with (
        SchedulerProcess(tmp_path, arguments=(*NO_PREDICTOR, *SHORT_LEASES)) as process,
        SchedulerClient(process.address) as client,
        FakeAgent(process.address, node_id="node-1") as first,
    ):
        client.submit(steps_total=10**6)
        client.wait_for_phase("job-1", "RUNNING")
        wait_until(lambda: first.renewed, what="a renewed lease")
        with FakeAgent(process.address, node_id="node-2") as second:
            wait_until(lambda: len(nodes(client)) == 2, what="the second node")
            first.go_away()
            (key,) = wait_until(lambda: second.launched, what="a start elsewhere")
            assert key[:2] == ("job-1", 2)
            assert key[2] > first.launched[0][2]
            first.come_back()
            wait_until(lambda: first.hellos >= 2 and first.stopped, what="the old attempt is stopped")
            assert second.running() == [key]
    lost = [line for line in process.log_lines() if line["fields"].get("kind") == "NodeLost"]
    assert [line["fields"]["node_id"] for line in lost] == ["node-1"]


def test_a_short_absence_loses_nothing(scheduler: SchedulerProcess, client: SchedulerClient) -> None:
    with FakeAgent(scheduler.address) as agent:
        client.submit(steps_total=10**6)
        client.wait_for_phase("job-1", "RUNNING")
        agent.cut()
        wait_until(lambda: agent.hellos >= 2, what="the agent is back")
        wait_until(lambda: nodes(client)[0].connected, what="the node is connected")
        assert client.get("job-1").attempt == 1
        assert len(agent.launched) == 1


def test_an_end_during_the_schedulers_absence_is_not_lost(scheduler: SchedulerProcess, client: SchedulerClient) -> None:
    with FakeAgent(scheduler.address) as agent:
        client.submit(steps_total=10**6)
        client.wait_for_phase("job-1", "RUNNING")
        scheduler.kill()
        agent.finish(agent.running()[0])
        scheduler.start()
        job = client.wait_for_phase("job-1", "FINISHED")
        assert (job.attempt, job.steps_done) == (1, 10**6)
        wait_until(lambda: not agent.attempts, what="the agent may clean up")


class Submitter(threading.Thread):
    """Submits without pause; an unanswered request is repeated with its id until it is answered."""

    def __init__(self, process: SchedulerProcess, seed: int) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.generator = random.Random(seed)
        self.accepted: list[str] = []
        self.repeated = 0
        self.ending = threading.Event()

    def run(self) -> None:
        with SchedulerClient(self.process.address) as client:
            while not self.ending.wait(self.generator.uniform(0, 0.1)):
                self.accepted.append(
                    self.submit_until_answered(client, str(uuid.UUID(int=self.generator.getrandbits(128))))
                )

    def submit_until_answered(self, client: SchedulerClient, request_id: str) -> str:
        while True:
            try:
                return client.submit(steps_total=10**6, request_id=request_id).job_id
            except grpc.RpcError:
                self.repeated += 1


@pytest.mark.parametrize(
    "kills", [pytest.param(5, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.endurance)]
)
def test_no_job_is_lost_and_none_runs_twice_when_the_scheduler_is_killed_again_and_again(
    tmp_path: Path, kills: int
) -> None:
    seed = 7
    generator = random.Random(seed)
    arguments = (*NO_PREDICTOR, "--progress-interval-ms", "50", "--snapshot-every-events", "25")
    with (
        SchedulerProcess(tmp_path, arguments=arguments) as process,
        SchedulerClient(process.address) as client,
        FakeAgent(process.address, gpus=4) as agent,
    ):
        submitter = Submitter(process, seed)
        submitter.start()
        for _ in range(kills):
            time.sleep(generator.uniform(0, 0.5))
            for key in agent.running()[: generator.randrange(4)]:
                agent.finish(key)
            time.sleep(generator.uniform(0, 0.05))
            process.restart()
        wait_until(lambda: len(submitter.accepted) > kills, what="more jobs than kills")
        submitter.ending.set()
        submitter.join(timeout=90)
        accepted = submitter.accepted
        finish_everything(agent, client, accepted)
        assert len(set(accepted)) == len(accepted) > kills, f"seed={seed}"
        assert sorted(key[0] for key in agent.launched) == sorted(accepted), f"seed={seed}"
    events = [
        decode_event({k: v for k, v in line.items() if k != "sequence"}) for line in export_log(process.state_dir)
    ]
    submitted = [event.request.job_id for event in events if isinstance(event, JobSubmitted)]
    assert submitted == accepted
    assert {event.job_id for event in events if isinstance(event, JobFinished)} == set(accepted)
    assert not [event for event in events if isinstance(event, NodeLost)]


def finish_everything(agent: FakeAgent, client: SchedulerClient, job_ids: list[str]) -> None:
    def is_over() -> bool:
        for key in agent.running():
            agent.finish(key)
        return all(job.phase == scheduling_pb2.JOB_PHASE_FINISHED for job in client.list_all())

    wait_until(is_over, what=f"all of {len(job_ids)} jobs are finished")


def test_a_full_disk_refuses_requests_keeps_facts_and_heals(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "size=512k") as mount:
        check_full_disk(tmp_path, mount)


def check_full_disk(folder: Path, mount: Path) -> None:
    with (
        SchedulerProcess(folder, arguments=NO_PREDICTOR, state_dir=mount / "state") as process,
        SchedulerClient(process.address) as client,
        FakeAgent(process.address) as agent,
    ):
        client.submit(steps_total=10**6)
        client.wait_for_phase("job-1", "RUNNING")
        ballast = mount / "ballast"
        fill(ballast)
        refused = submit_until_refused(client)
        assert code_of(refused) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason_of(refused) == "STATE_FULL"
        assert "free some space" in details_of(refused)
        jobs_before = len(client.list_all())
        acks_before = agent.acks
        (key,) = agent.running()
        agent.finish(key)
        wait_until(lambda: agent.acks > acks_before, what="leases are still renewed")
        assert key not in agent.ends_stored
        ballast.unlink()
        wait_until(lambda: key in agent.ends_stored, what="the end is stored at last")
        assert client.get("job-1").phase == scheduling_pb2.JOB_PHASE_FINISHED
        assert len(client.list_all()) == jobs_before
        client.submit()
        process.restart()
        assert len(client.list_all()) == jobs_before + 1


def submit_until_refused(client: SchedulerClient) -> grpc.RpcError:
    for _ in range(200):
        try:
            client.submit()
        except grpc.RpcError as error:
            return error
    raise AssertionError("the disk never became full")
