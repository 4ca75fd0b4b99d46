"""`cotenant engine slurm` against a Slurm that answers what one really wrote."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.decide import decide
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

RECORDED = Path(__file__).parents[1] / "engines" / "recorded"
GPU = "n*=NVIDIA A10:24GiB"


@pytest.fixture(autouse=True)
def decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fake scheduler decide as the real one does."""

    def answer(_fake: object, request: scheduling_pb2.DecideRequest, _context: object) -> scheduling_pb2.DecideResponse:
        return asyncio.run(decide(request, predictor=None, seconds_left=60))

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
    away = cotenant("engine", "slurm", "--once", "--gpu", GPU, "--scheduler", "127.0.0.1:1", "--timeout", "0.2")
    assert away.code == 5
    assert slurm.read_text() == ""
    shutil.rmtree(slurm.parent / "bin")
    missing = cotenant("engine", "slurm", "--once", "--gpu", GPU)
    assert missing.code != 0
    assert "squeue is not installed here" in missing.err
