"""The multi-process service: a daemon in a folder of its own, and a proof that can fail."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from cotenant_profiler.campaign import Campaign, Method, parse_campaign
from cotenant_profiler.campaign_run import run_campaign
from cotenant_profiler.errors import InvalidCampaignError, JournalError, ProfilerError, WorkerError
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.journal import open_journal
from cotenant_profiler.measured_device import WorkerPlace
from cotenant_profiler.mps import CONTROL_PROGRAM, MpsDaemon
from cotenant_profiler.mps_probe import WorkersOnGpu, prove_mps

_CONTROL = """#!/bin/sh
here=$(dirname "$0")
if [ "$1" = "-d" ]; then echo started >> "$here/orders"; exit "$(cat "$here/start_status" 2>/dev/null || echo 0)"; fi
read -r order
echo "$order" >> "$here/orders"
if [ "$order" = get_server_list ]; then echo 4711; fi
"""
_HEADER = {"campaign": "c", "device": "FakeGPU", "framework": "torch-2"}


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control program that writes down its orders next to itself."""
    program = tmp_path / CONTROL_PROGRAM
    program.write_text(_CONTROL)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


class _Gpu:
    """Lets two processes get through `sliced` or, as clients of a daemon, `shared` times the work of one."""

    def __init__(self, sliced: float, shared: float, *, limited: bool = True) -> None:
        self._sliced, self._shared, self._limited = sliced, shared, limited

    def count_kernels(self, processes: int, environment: Mapping[str, str]) -> int:
        together = self._shared if "CUDA_MPS_PIPE_DIRECTORY" in environment else self._sliced
        return round(1_000 * (together if processes == 2 else 1))

    def refuses(self, memory_bytes: int, environment: Mapping[str, str]) -> bool:
        limit_mib = int(environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].removeprefix("0=").removesuffix("M"))
        return self._limited and memory_bytes > limit_mib << 20


def test_the_daemon_starts_lists_its_servers_and_quits_and_its_folder_goes(control: Path) -> None:
    with MpsDaemon() as daemon:
        folders = [Path(folder) for folder in daemon.environment.values()]
        assert all(folder.is_dir() for folder in folders)
        assert daemon.server_pids() == {4711}
    assert (control / "orders").read_text().split() == ["started", "get_server_list", "quit"]
    assert not any(folder.parent.exists() for folder in folders)


def test_a_daemon_that_does_not_start_is_an_error_and_leaves_no_folder(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (control / "start_status").write_text("1")
    monkeypatch.setattr("tempfile.tempdir", str(control))
    with pytest.raises(ProfilerError, match="does not answer"), MpsDaemon():
        pass
    assert not list(control.glob("cotenant-mps-*"))


def test_a_machine_without_the_service_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ProfilerError, match="measure with time slicing"):
        MpsDaemon()


@pytest.mark.parametrize(
    ("sliced", "shared", "works"),
    [(1.0, 1.95, True), (1.0, 1.02, False), (1.9, 1.95, False), (1.0, 1.4, False)],
    ids=["shared", "a client that silently ran without", "no contention to begin with", "something in between"],
)
def test_only_turns_without_it_and_company_with_it_are_a_proof(
    control: Path, sliced: float, shared: float, works: bool
) -> None:
    with MpsDaemon() as daemon:
        proof = prove_mps(_Gpu(sliced, shared), daemon)
    assert proof.works is works
    assert proof.facts() == {
        "sliced_ratio": sliced,
        "shared_ratio": shared,
        "memory_limit_holds": True,
        "works": works,
    }


def test_a_memory_limit_that_does_not_hold_is_reported(control: Path) -> None:
    with MpsDaemon() as daemon:
        assert prove_mps(_Gpu(1.0, 2.0, limited=False), daemon).memory_limit_holds is False


@pytest.mark.endurance
def test_a_worker_without_a_gpu_refuses_to_probe_one() -> None:
    place = WorkerPlace(arguments=("--core", "0"))
    with pytest.raises(WorkerError, match="the worker has none"):
        WorkersOnGpu(place).count_kernels(1, {})
    with pytest.raises(WorkerError, match="the worker has none"):
        WorkersOnGpu(place).refuses(1 << 30, {})


def test_a_campaign_names_how_jobs_share_and_time_slicing_is_what_there_is_otherwise() -> None:
    document = {"name": "c", "device": "nvidia:0", "core_jobs": {"a": {"architecture": "mlp", "batch": 8}}}
    assert parse_campaign(document).share_mode == "time_slicing"
    assert parse_campaign({**document, "share_mode": "mps"}).share_mode == "mps"
    with pytest.raises(InvalidCampaignError, match="time_slicing, mps"):
        parse_campaign({**document, "share_mode": "mig"})


def test_the_stand_in_device_cannot_be_shared_by_the_service(tmp_path: Path) -> None:
    campaign = Campaign(
        name="c",
        device="cpu-standin",
        seed=0,
        method=Method(),
        core_jobs=(JobSpec(architecture="mlp", batch=8),),
        share_mode="mps",
    )
    with pytest.raises(InvalidCampaignError, match="needs an NVIDIA GPU"):
        run_campaign(campaign, tmp_path)


def test_results_of_one_way_of_sharing_are_not_continued_in_another(tmp_path: Path) -> None:
    open_journal(tmp_path, _HEADER)
    with pytest.raises(JournalError, match="share_mode None, not 'mps'"):
        open_journal(tmp_path, {**_HEADER, "share_mode": "mps"})
