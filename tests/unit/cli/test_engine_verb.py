"""`cotenant engine slurm` against a Slurm that answers what one really wrote."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import grpc
import pytest
from google.rpc import code_pb2  # type: ignore[import-untyped]

from cotenant.cli.engine_rounds import show_round
from cotenant.engines.bridge import Bridge
from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import InvalidRequestError
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler, refuse
from tests.support.simulated_engine import SimulatedEngine

RECORDED = Path(__file__).parents[1] / "engines" / "recorded"
GPU = "n*=NVIDIA A10:24GiB"


@pytest.fixture(autouse=True)
def decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fake scheduler decide as the real one does."""

    def answer(
        _fake: object, request: scheduling_pb2.DecideRequest, context: grpc.ServicerContext
    ) -> scheduling_pb2.DecideResponse:
        try:
            return asyncio.run(decide(request, predictor=None, seconds_left=60))
        except InvalidRequestError as error:
            refuse(context, code_pb2.INVALID_ARGUMENT, str(error), reason="INVALID_REQUEST")
            raise

    monkeypatch.setattr(FakeScheduler, "Decide", answer)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put commands of Slurm on the path; return the file that gets the orders."""
    orders = tmp_path / "orders"
    orders.touch()
    scripts = {
        "squeue": f"cat {RECORDED}/squeue_22_05.json",
        "sinfo": f"cat {RECORDED}/sinfo_22_05.json",
        "scontrol": f'printf "%s\\n" "$*" >> {orders}',
    }
    for name, line in scripts.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return orders


def test_advice_is_written_into_the_job_that_asked_for_it(
    slurm: Path, scheduler: FakeScheduler, cotenant: CommandLine
) -> None:
    done = cotenant("engine", "slurm", "--once", "--gpu", GPU)
    assert done.code == 0
    assert done.out.startswith("job 1: cotenant: would start on n2/g1")
    [order] = slurm.read_text().splitlines()
    assert order.startswith("update JobId=1 AdminComment=cotenant: would start on n2/g1")


def test_a_held_job_gets_its_gpu_and_is_released(slurm: Path, scheduler: FakeScheduler, cotenant: CommandLine) -> None:
    assert cotenant("engine", "slurm", "--place", "--once", "--gpu", GPU).code == 0
    placed, released = slurm.read_text().splitlines()
    assert placed.startswith("update JobId=1 ReqNodeList=n2 Gres=shard:g1:1 AdminComment=cotenant placed n2/g1 1: ")
    assert released == "release 1"


def test_jobs_share_by_default_on_what_a_comment_can_say(
    slurm: Path, scheduler: FakeScheduler, cotenant: CommandLine
) -> None:
    """Also without any length, which the default policy of our own queue would ask for."""
    squeue = json.loads((RECORDED / "squeue_22_05.json").read_text())
    waiting = squeue["jobs"][0] | {"comment": "cotenant memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"}
    jobs = [waiting | {"job_id": number} for number in range(10, 15)]
    (slurm.parent / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    (slurm.parent / "bin" / "squeue").write_text(f"#!/bin/sh\ncat {slurm.parent / 'jobs.json'}\n")
    assert cotenant("engine", "slurm", "--place", "--once", "--gpu", GPU).code == 0
    orders = [line.split()[1:4] for line in slurm.read_text().splitlines() if line.startswith("update")]
    assert len(orders) == 5
    assert len({(node, gres) for _, node, gres in orders}) == 4


@pytest.mark.parametrize("place", ["--advise", "--place"])
def test_a_policy_that_the_scheduler_does_not_have_is_told_before_any_job_waits(
    slurm: Path, scheduler: FakeScheduler, cotenant: CommandLine, place: str
) -> None:
    (slurm.parent / "bin" / "squeue").write_text("#!/bin/sh\necho '{\"jobs\": []}'\n")
    done = cotenant("engine", "slurm", place, "--once", "--gpu", GPU, "--policy", "horuss")
    assert (done.code, slurm.read_text()) == (2, "")
    assert "there is no policy 'horuss' (did you mean horus?)" in done.err


@pytest.mark.parametrize("rule", ["n1", "n*=A10", "=A10:1GiB", "n*=:1GiB", "n*=A10:lots"])
def test_a_rule_that_says_no_device_is_refused_with_the_form(
    slurm: Path, scheduler: FakeScheduler, cotenant: CommandLine, rule: str
) -> None:
    done = cotenant("engine", "slurm", "--once", "--gpu", rule)
    assert (done.code, slurm.read_text()) == (2, "")
    assert "write it like" in done.err


def test_without_slurm_or_a_scheduler_once_fails_and_says_why(
    slurm: Path, cotenant: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not at the usual port: another scheduler may be there.
    nowhere = ("--scheduler", "127.0.0.1:1", "--timeout", "0.2")
    away = cotenant("engine", "slurm", "--once", "--gpu", GPU, *nowhere)
    assert away.code == 5
    assert slurm.read_text() == ""
    monkeypatch.setenv("PATH", str(slurm.parent / "empty"))
    missing = cotenant("engine", "slurm", "--once", "--gpu", GPU, *nowhere)
    assert missing.code != 0
    assert "squeue is not installed here" in missing.err


@pytest.mark.parametrize(("order", "told"), [("hold", ["hold 1"]), ("stop", ["scancel 1"]), ("requeue", ["requeue 1"])])
def test_one_order_is_given_without_any_rule_about_gpus(
    slurm: Path, cotenant: CommandLine, order: str, told: list[str]
) -> None:
    path = slurm.parent / "bin" / "scancel"
    path.write_text(f'#!/bin/sh\nprintf "scancel %s\\n" "$*" >> {slurm}\n')
    path.chmod(0o755)
    done = cotenant("engine", "slurm", "--order", order, "1")
    assert (done.code, done.out) == (0, f"job 1: {order}: done\n")
    assert slurm.read_text().splitlines() == told


def test_a_job_that_runs_is_not_held_and_one_that_is_gone_neither(slurm: Path, cotenant: CommandLine) -> None:
    for job_id in ("2", "99"):
        done = cotenant("engine", "slurm", "--order", "hold", job_id)
        assert done.code != 0
        assert "has started, or is gone" in done.err
    assert slurm.read_text() == ""


def test_rounds_beside_slurm_need_a_rule_about_gpus(slurm: Path, cotenant: CommandLine) -> None:
    done = cotenant("engine", "slurm", "--once")
    assert done.code == 2
    assert "Missing option '--gpu'" in done.err


def test_a_warning_is_printed_when_it_comes_and_not_again_in_every_round(capsys: pytest.CaptureFixture[str]) -> None:
    engine = SimulatedEngine(nodes=0)
    engine.submit("1", "cotenant memory=6GiB")
    bridge = Bridge(engine, lambda _: scheduling_pb2.DecideResponse(), policy="horus", places=True)
    warnings = frozenset[str]()
    for _ in range(3):
        warnings = show_round(bridge, 10, warnings)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == ["warning", "job 1"]
