"""Measuring processes forked from one that imported the framework: they end with it, and measure as fresh ones do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
import torch
from cotenant_profiler import framework_server
from cotenant_profiler.errors import ForkRefusedError, WorkerError
from cotenant_profiler.framework_client import FrameworkClient
from cotenant_profiler.framework_server import why_not_fork
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.measured_device import WorkerPlace
from cotenant_profiler.worker_client import WorkerClient

from tests.support.agent import wait_until

IMPORT_MS: Final = 120_000.0
STEPS: Final = 12
SERVERS, FORKS, FRESH = 3, 4, 12
TOLERANCE_RATIO: Final = 0.02
CORE: Final = ("--core", str(max(os.sched_getaffinity(0))))
OPEN_FILES: Final = Path("/proc/self/fd")
CALIBRATOR: Final = (
    "import sys, time\n"
    "from cotenant_profiler.framework_client import FrameworkClient\n"
    "server = FrameworkClient(sys.argv[1:])\n"
    f"workers = [server.start({IMPORT_MS}) for _ in range(2)]\n"
    "print(server.pid, *(worker.pid for worker in workers), flush=True)\n"
    "time.sleep(600)"
)
NETWORKS: Final = (
    ("resnet", 32),
    ("mlp", 128),
    ("lstm", 32),
    ("vector_autoencoder", 64),
    ("transformer", 16),
    ("unet_small", 8),
)


@pytest.fixture(scope="module")
def server() -> Iterator[FrameworkClient]:
    with FrameworkClient(CORE) as client:
        yield client


@pytest.fixture(scope="module")
def servers() -> Iterator[Sequence[FrameworkClient]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(FrameworkClient(CORE)) for _ in range(SERVERS)]


def is_alive(pid: int) -> bool:
    """Whether it runs; one that ended and that nobody waited for does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    return False


def open_pipes() -> set[str]:
    """Those of this process; what earlier tests left to be collected may be closed at any time."""
    found = set()
    for file in OPEN_FILES.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(file.readlink()))
    return {name for name in found if name.startswith("pipe:")}


def forked_peak_bytes(server: FrameworkClient, network: str, batch: int) -> int:
    with server.start(IMPORT_MS, keeps_freed_memory=None) as worker:
        job = JobSpec(architecture=network, batch=batch)
        return int(worker.ask("script", IMPORT_MS, job=job, steps=STEPS)["peak_bytes"])


def script_peak_bytes(network: str, batch: int) -> int:
    command = [sys.executable, "-m", "cotenant_profiler.plain_training", network, str(batch), str(STEPS), *CORE]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


def test_a_forked_worker_measures_on_its_core_and_is_gone_when_it_is_closed(server: FrameworkClient) -> None:
    worker = server.start(IMPORT_MS)
    job = JobSpec(architecture="mlp", batch=8)
    assert worker.ask("prepare", job=job, steps_min=1, duration_ms_min=1, duration_ms_max=50).keys() == {"steady"}
    assert os.sched_getaffinity(worker.pid) == {int(CORE[1])}
    with pytest.raises(WorkerError, match="no architecture"):
        worker.ask("prepare", job=JobSpec(architecture="none", batch=8), steps_min=1)
    worker.close()
    assert not Path(f"/proc/{worker.pid}").exists()


def test_a_worker_that_dies_is_told_with_its_exit_code_and_the_next_one_starts(server: FrameworkClient) -> None:
    worker = server.start(IMPORT_MS)
    os.kill(worker.pid, signal.SIGSEGV)
    with pytest.raises(WorkerError, match=r"\(exit code -11\)"):
        worker.ask("context")
    worker.close()
    with server.start(IMPORT_MS) as another:
        assert another.ask("context")["context_bytes"] > 0


def test_workers_end_with_the_process_that_they_were_forked_from() -> None:
    with FrameworkClient(CORE) as client:
        worker = client.start(IMPORT_MS)
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="ended"):
            worker.ask("context")
        worker.close()
        wait_until(lambda: not is_alive(worker.pid), "the worker ends with its server")
        with pytest.raises(WorkerError, match="imports the framework"):
            client.start(IMPORT_MS)


def test_nothing_is_left_of_a_calibrating_process_that_was_killed() -> None:
    calibrator = subprocess.Popen([sys.executable, "-c", CALIBRATOR, *CORE], stdout=subprocess.PIPE, text=True)
    assert calibrator.stdout is not None
    with calibrator.stdout as told:
        pids = [int(pid) for pid in told.readline().split()]
    assert [is_alive(pid) for pid in pids] == [True] * 3
    calibrator.kill()
    calibrator.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "its server and both workers are gone")


def test_an_import_that_takes_too_long_is_given_up_and_ended() -> None:
    with FrameworkClient(CORE) as client:
        with pytest.raises(WorkerError, match="not imported within"):
            client.start(1.0)
        assert not Path(f"/proc/{client.pid}").exists()
        with pytest.raises(WorkerError, match="gone"):
            client.start(IMPORT_MS)


@pytest.mark.parametrize(
    ("threads", "is_initialized", "refusal"), [(1, False, ""), (3, False, "started 2 threads"), (1, True, "a GPU")]
)
def test_a_process_with_threads_or_a_gpu_is_not_forked(
    threads: int, is_initialized: bool, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(threads):
        (tmp_path / str(number)).mkdir()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_initialized)
    assert why_not_fork(tmp_path).endswith(refusal)
    assert bool(why_not_fork(tmp_path)) is bool(refusal)


def test_nothing_is_forked_where_the_kernel_does_not_tell_which_pages_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process would be said to hold 60 MB less than a fresh one."""

    def refuse() -> list[range]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(framework_server, "present_pages", refuse)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(json.dumps({"do": "start", "allocator": {}}).encode())
        ours.shutdown(socket.SHUT_WR)
        framework_server.FrameworkServer(theirs, CORE).serve()
        assert "Permission denied" in json.loads(ours.recv(4096))["refused"]


def test_a_refusal_says_why_and_leaves_no_pipe_open(server: FrameworkClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_ask", lambda *_: {"refused": "importing the framework started 2 threads"})
    before = open_pipes()
    with pytest.raises(ForkRefusedError, match="2 threads"):
        server.start(IMPORT_MS)
    assert open_pipes() <= before


def test_a_forked_worker_counts_the_memory_of_a_first_optimizer_as_a_fresh_one_does(server: FrameworkClient) -> None:
    with server.start(IMPORT_MS) as worker:
        forked = worker.ask("context")
    with WorkerClient(WorkerPlace(arguments=CORE)) as fresh_worker:
        fresh = fresh_worker.ask("context")
    assert forked["context_bytes"] == pytest.approx(fresh["context_bytes"], rel=TOLERANCE_RATIO)


def test_a_forked_script_holds_the_pages_of_files_that_a_fresh_one_holds(server: FrameworkClient) -> None:
    """They are what a fork leaves behind, 60 MB; what was written is copied, and differs by 3 MB between two runs."""
    job = JobSpec(architecture="lstm", batch=32)
    file_bytes, peak_bytes = [], []
    forked = server.start(IMPORT_MS, keeps_freed_memory=None)
    for each in (forked, WorkerClient(WorkerPlace(arguments=CORE), keeps_freed_memory=None)):
        with each as worker:
            peak_bytes.append(worker.ask("script", job=job, steps=STEPS)["peak_bytes"])
            status = Path(f"/proc/{worker.pid}/status").read_text(encoding="utf-8")
            file_bytes.append(int(status.partition("RssFile:")[2].split()[0]) * 1024)
    assert file_bytes[0] == pytest.approx(file_bytes[1], rel=TOLERANCE_RATIO)
    assert peak_bytes[0] == pytest.approx(peak_bytes[1], abs=6e6)


@pytest.mark.endurance
@pytest.mark.parametrize(("network", "batch"), NETWORKS)
def test_the_mean_memory_of_forked_scripts_is_that_of_fresh_ones_within_2_percent(
    servers: Sequence[FrameworkClient], network: str, batch: int
) -> None:
    """Means: one figure of either kind is off by up to 3 % of it, by how blocks happen to fit into the heap."""
    forked = [forked_peak_bytes(server, network, batch) for server in servers for _ in range(FORKS)]
    fresh = [script_peak_bytes(network, batch) for _ in range(FRESH)]
    assert statistics.fmean(forked) == pytest.approx(statistics.fmean(fresh), rel=TOLERANCE_RATIO)
