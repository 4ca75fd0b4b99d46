"""The real scheduler process between a user, a node agent and a predictor, over real connections."""

from __future__ import annotations

import os
import urllib.request
import uuid
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cotenant.v1 import scheduling_pb2
from tests.support.fake_agent import FakeAgent
from tests.support.fake_predictor import FakePredictor, GenericPredictor
from tests.support.grpc_errors import code_of, details_of, reason_of, rich_status
from tests.support.loaded_programs import run_program
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, job_spec, wait_until

NO_PREDICTOR = ("--predictor", "", "--policy", "fifo")
QUICK = ("--progress-interval-ms", "50")


def test_a_job_is_submitted_runs_and_finishes(scheduler: SchedulerProcess, client: SchedulerClient) -> None:
    with FakeAgent(scheduler.address) as agent:
        job = client.submit(name="resnet")
        assert (job.job_id, job.spec.name) == ("job-1", "resnet")
        running = client.wait_for_phase("job-1", "RUNNING")
        assert (running.node_id, running.attempt) == ("node-1", 1)
        wait_until(lambda: client.get("job-1").steps_done > 0, what="progress")
        (key,) = agent.running()
        agent.finish(key)
        finished = client.wait_for_phase("job-1", "FINISHED")
        assert (finished.steps_done, finished.exit_class) == (10, "done")
        wait_until(lambda: key in agent.ends_stored, what="the end is confirmed to the agent")
        explained = client.stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id="job-1"), timeout=90)
        assert explained.policy == "fifo"
        assert [event.at_ms for event in explained.history] == sorted(event.at_ms for event in explained.history)
        assert len(explained.history) >= 3
        assert agent.errors == []


def test_a_waiting_job_says_why_and_its_log_needs_a_start(client: SchedulerClient) -> None:
    job = client.submit()
    assert job.phase == scheduling_pb2.JOB_PHASE_PENDING
    assert job.reason.code
    assert job.reason.message
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stub.ReadJobLog(scheduling_pb2.ReadJobLogRequest(job_id=job.job_id), timeout=90))
    assert code_of(caught.value) is grpc.StatusCode.FAILED_PRECONDITION


def test_cancelling_twice_is_harmless_and_an_unknown_job_is_named(
    scheduler: SchedulerProcess, client: SchedulerClient
) -> None:
    with FakeAgent(scheduler.address) as agent:
        client.submit()
        client.wait_for_phase("job-1", "RUNNING")
        client.cancel("job-1")
        client.cancel("job-1")
        client.wait_for_phase("job-1", "CANCELLED")
        assert client.cancel("job-1").phase == scheduling_pb2.JOB_PHASE_CANCELLED
        assert len(agent.launched) == 1
    with pytest.raises(grpc.RpcError) as caught:
        client.cancel("job-99")
    assert code_of(caught.value) is grpc.StatusCode.NOT_FOUND
    assert reason_of(caught.value) == "UNKNOWN_JOB"


def test_a_repeated_request_gets_the_same_answer_even_after_a_crash(
    scheduler: SchedulerProcess, client: SchedulerClient
) -> None:
    request_id = str(uuid.uuid4())
    assert client.submit(request_id=request_id).job_id == "job-1"
    assert client.submit(request_id=request_id).job_id == "job-1"
    scheduler.restart()
    assert client.submit(request_id=request_id).job_id == "job-1"
    with pytest.raises(grpc.RpcError) as caught:
        client.submit(request_id=request_id, name="another")
    assert code_of(caught.value) is grpc.StatusCode.ALREADY_EXISTS
    assert reason_of(caught.value) == "REQUEST_CONFLICT"
    assert client.submit().job_id == "job-2"


def test_a_wrong_spec_lists_every_violation_and_stores_nothing(client: SchedulerClient) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.submit(name="no spaces please", settings={"global_batch_size": 10**9}, gpus=5000)
    status = rich_status(caught.value)
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status.details)
    fields = {violation.field for violation in bad.field_violations}
    assert fields == {"spec.name", "spec.settings.global_batch_size", "spec.gpus"}
    assert client.list_all() == []


def test_a_dry_run_stores_nothing(client: SchedulerClient) -> None:
    would_be = client.submit(validate_only=True, name="dry", settings={"global_batch_size": 8})
    assert (would_be.job_id, would_be.spec.settings.global_batch_size) == ("", 8)
    assert client.list_all() == []


def test_jobs_are_listed_newest_first_in_pages(client: SchedulerClient) -> None:
    for number in range(5):
        client.submit(tenant="a" if number % 2 else "b")
    pages, token = [], ""
    while True:
        request = scheduling_pb2.ListJobsRequest(page_size=2, page_token=token)
        page = client.stub.ListJobs(request, timeout=90)
        pages.append([job.job_id for job in page.jobs])
        token = page.next_page_token
        if not token:
            break
    assert pages == [["job-5", "job-4"], ["job-3", "job-2"], ["job-1"]]
    assert [job.job_id for job in client.list_all(tenant="a")] == ["job-4", "job-2"]
    assert client.list_all(phases=[scheduling_pb2.JOB_PHASE_RUNNING]) == []
    # "1:abc" as tokens are written: a place, but none of a job.
    assert not client.stub.ListJobs(scheduling_pb2.ListJobsRequest(page_token="MTphYmM="), timeout=90).jobs
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.ListJobs(scheduling_pb2.ListJobsRequest(page_token="nonsense"), timeout=90)
    assert code_of(caught.value) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_watcher_sees_the_snapshot_then_changes(scheduler: SchedulerProcess, client: SchedulerClient) -> None:
    client.submit()
    watching = client.stub.WatchJobs(scheduling_pb2.WatchJobsRequest(), timeout=60)
    assert next(watching).job.job_id == "job-1"
    assert next(watching).snapshot_end
    client.submit()
    assert next(watching).job.job_id == "job-2"
    client.cancel("job-2")
    phases = {message.job.job_id: message.job.phase for message in [next(watching)]}
    assert phases == {"job-2": scheduling_pb2.JOB_PHASE_CANCELLED}
    watching.cancel()


def test_a_log_is_relayed_from_the_agent(scheduler: SchedulerProcess, client: SchedulerClient) -> None:
    with FakeAgent(scheduler.address, logs=b"x" * 200_000 + b"the end") as agent:
        client.submit()
        client.wait_for_phase("job-1", "RUNNING")
        whole = scheduling_pb2.ReadJobLogRequest(job_id="job-1")
        read = b"".join(answer.chunk for answer in client.stub.ReadJobLog(whole, timeout=90))
        assert read == agent.logs
        tail = scheduling_pb2.ReadJobLogRequest(job_id="job-1", tail_bytes=7)
        assert [answer.chunk for answer in client.stub.ReadJobLog(tail, timeout=90)] == [b"the end"]
        agent.finish(agent.running()[0])
        client.wait_for_phase("job-1", "FINISHED")
        assert b"".join(answer.chunk for answer in client.stub.ReadJobLog(tail, timeout=90)) == b"the end"
        agent.go_away()
        wait_until(lambda: not nodes(client)[0].connected, what="the node is gone")
        with pytest.raises(grpc.RpcError) as caught:
            list(client.stub.ReadJobLog(whole, timeout=90))
        assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE


def nodes(client: SchedulerClient) -> list[scheduling_pb2.Node]:
    return list(client.stub.ListNodes(scheduling_pb2.ListNodesRequest(), timeout=90).nodes)


def test_predictions_are_asked_shown_and_their_outcomes_reported(tmp_path: Path) -> None:
    with (
        FakePredictor() as predictor,
        SchedulerProcess(tmp_path, arguments=("--predictor", predictor.address, "--policy", "fifo", *QUICK)) as process,
        SchedulerClient(process.address) as client,
        FakeAgent(process.address) as agent,
    ):
        client.submit(graph_sha256="ab" * 32, steps_total=1000)
        job = client.wait_for_phase("job-1", "RUNNING")
        assert [prediction.utilization_ratio.value for prediction in job.predictions] == [0.4]
        assert predictor.job_questions[0].device == "fake-gpu"
        assert any(8 in question.micro_batch_sizes for question in predictor.job_questions), (
            "admission may ask first, for the whole batch alone"
        )
        client.wait_until_measured_alone("job-1", steps=120)
        agent.finish(agent.running()[0])
        client.wait_for_phase("job-1", "FINISHED")
        wait_until(lambda: predictor.outcomes, what="an outcome")
        assert predictor.outcomes[0].prediction_id == job.predictions[0].prediction_id


def test_jobs_run_alone_on_an_unknown_gpu_type(tmp_path: Path) -> None:
    with (
        GenericPredictor() as predictor,
        SchedulerProcess(tmp_path, arguments=("--predictor", predictor.address, *QUICK)) as process,
        SchedulerClient(process.address) as client,
        FakeAgent(process.address, device="NVIDIA X990") as agent,
    ):
        for number in (1, 2):
            client.submit(graph_sha256="ab" * 32, steps_total=1000, share="SHARE_MODE_ANY", max_slowdown_ratio=5)
            wait_until(lambda: len(predictor.job_questions) >= number, what="the question")  # noqa: B023 (asked at once)
        first = client.wait_for_phase("job-1", "RUNNING")
        assert first.reason.code == "STARTS_ALONE_PREDICTION_FAILED"
        wait_until(lambda: client.get("job-2").reason.code not in ("", "AWAITING_PREDICTION"), what="a decision")
        assert client.get("job-2").phase == scheduling_pb2.JOB_PHASE_PENDING
        agent.finish(agent.running()[0])
        client.wait_for_phase("job-2", "RUNNING")


def test_a_predictor_that_is_down_only_costs_sharing(tmp_path: Path) -> None:
    arguments = ("--predictor", "127.0.0.1:1", "--policy", "fifo", "--predictor-deadline-ms", "1500")
    with (
        SchedulerProcess(tmp_path, arguments=arguments) as process,
        SchedulerClient(process.address) as client,
        FakeAgent(process.address),
    ):
        client.submit(graph_sha256="ab" * 32)
        assert not client.wait_for_phase("job-1", "RUNNING").predictions


def test_policies_are_listed_checked_and_kept_over_a_restart(
    scheduler: SchedulerProcess, client: SchedulerClient
) -> None:
    listed = client.stub.ListPolicies(scheduling_pb2.ListPoliciesRequest(), timeout=90).policies
    assert [policy.name for policy in listed if policy.active] == ["fifo"]
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.SetPolicy(scheduling_pb2.SetPolicyRequest(policy="magic"), timeout=90)
    assert code_of(caught.value) is grpc.StatusCode.INVALID_ARGUMENT
    assert "fifo" in details_of(caught.value)
    client.stub.SetPolicy(scheduling_pb2.SetPolicyRequest(policy="horus", validate_only=True), timeout=90)
    assert (
        client.stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id=client.submit().job_id), timeout=90).policy
        == "fifo"
    )
    chosen = scheduling_pb2.SetPolicyRequest(policy="horus")
    chosen.parameters.update({"max_jobs_per_gpu": 3})
    client.stub.SetPolicy(chosen, timeout=90)
    scheduler.restart()
    request = scheduling_pb2.ListPoliciesRequest()
    listed = client.stub.ListPolicies(request, timeout=90, wait_for_ready=True).policies
    [horus] = [policy for policy in listed if policy.active]
    values = {one.name: (one.default_value, one.value_in_use) for one in horus.parameters}
    assert (horus.name, values.pop("max_jobs_per_gpu")) == ("horus", ("2", "3"))
    assert all(default == in_use for default, in_use in values.values())
    assert not any(one.value_in_use for policy in listed if policy is not horus for one in policy.parameters)


def test_health_metrics_and_a_drained_end(scheduler: SchedulerProcess, client: SchedulerClient) -> None:
    with grpc.insecure_channel(scheduler.address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]
            health_pb2.HealthCheckRequest(service="cotenant.v1.SchedulingService"), timeout=90
        )
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=90)  # type: ignore[attr-defined]
        assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
        watching.cancel()
    assert check.status == health_pb2.HealthCheckResponse.SERVING
    client.submit()
    base = f"http://{scheduler.ready['metrics_address']}"
    metrics = urllib.request.urlopen(f"{base}/metrics", timeout=90).read().decode()
    assert 'cotenant_scheduler_events_total{kind="JobSubmitted"} 1.0' in metrics
    assert 'cotenant_scheduler_jobs{phase="pending"} 1.0' in metrics
    assert urllib.request.urlopen(f"{base}/readyz", timeout=90).status == 200
    with FakeAgent(scheduler.address):
        client.wait_for_phase("job-1", "RUNNING")
        metrics = urllib.request.urlopen(f"{base}/metrics", timeout=90).read().decode()
        assert "cotenant_scheduler_first_wait_seconds_count 1.0" in metrics
        assert scheduler.terminate() == 0
    submitted = [line for line in scheduler.log_lines() if line["fields"].get("kind") == "JobSubmitted"]
    assert [line["fields"]["job_id"] for line in submitted] == ["job-1"]
    assert "train.py" not in scheduler.log_file.read_text()


def test_a_second_scheduler_on_the_same_state_ends_with_the_reason(scheduler: SchedulerProcess) -> None:
    words = ["serve", "--address", "127.0.0.1:0", "--metrics-address", "", "--state-dir", str(scheduler.state_dir)]
    done = run_program("scheduler_service", words, folder=Path.cwd(), environment=os.environ, timeout_s=60)
    assert done.returncode == 1
    assert "another scheduler uses" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_publicly_reachable_address_is_refused_without_tls(tmp_path: Path) -> None:
    words = ["serve", "--address", "0.0.0.0:0", "--state-dir", str(tmp_path)]
    done = run_program("scheduler_service", words, folder=Path.cwd(), environment=os.environ, timeout_s=60)
    assert done.returncode == 2
    assert "--tls-certificate-file" in done.stderr


def test_decisions_on_a_snapshot_are_the_same_live_and_offline(client: SchedulerClient, tmp_path: Path) -> None:
    snapshot = scheduling_pb2.Snapshot(
        now_ms=1,
        nodes=[
            scheduling_pb2.SnapshotNode(
                node_id="n",
                schedulable=True,
                gpus=[scheduling_pb2.SnapshotGpu(gpu_id="g", device="d", memory_bytes=2**34, healthy=True)],
            )
        ],
        pending=[
            scheduling_pb2.SnapshotPending(
                job=scheduling_pb2.SnapshotJob(job_id=job_id, gpus=1, global_batch_size=8, steps_total=5)
            )
            for job_id in ("a", "b")
        ],
    )
    answer = client.stub.Decide(scheduling_pb2.DecideRequest(snapshot=snapshot, policy="fifo"), timeout=90)
    assert [(one.job_id, one.WhichOneof("action")) for one in answer.decisions] == [("a", "start"), ("b", "hold")]
    assert client.list_all() == []
    snapshot.pending[0].job.job_key = "known"
    graphless = client.stub.Decide(scheduling_pb2.DecideRequest(snapshot=snapshot, policy="fifo"), timeout=90)
    assert [(one.job_id, one.WhichOneof("action")) for one in graphless.decisions] == [("a", "start"), ("b", "hold")]
    assert [warning.code for warning in graphless.warnings] == ["NO_GRAPH"]
    snapshot.pending[0].job.graph_sha256 = "ab" * 32
    unpredicted = client.stub.Decide(scheduling_pb2.DecideRequest(snapshot=snapshot, policy="fifo"), timeout=90)
    assert [(one.job_id, one.WhichOneof("action")) for one in unpredicted.decisions] == [("a", "start"), ("b", "hold")]
    assert "no prediction for a" in unpredicted.warnings[0].message


def test_the_specs_of_the_tests_are_valid() -> None:
    assert job_spec().steps_total == 10
