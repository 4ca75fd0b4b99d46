"""A real Slurm of two nodes with two fake GPUs each, in a folder of its own: munged, slurmctld and slurmd."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import slurm_accounting
from tests.support.daemons import end_process, free_ports

DAEMONS = ("munged", "slurmctld", "slurmd", "squeue")
NODES = ("n1", "n2")
GPUS_PER_NODE = 2
SHARDS_PER_GPU = 4
_LUA = Path(__file__).parents[2] / "deploy" / "slurm" / "job_submit.lua"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_WAIT_S = 60.0

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/{tracker}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
{accounting}
JobSubmitPlugins=lua
GresTypes=gpu,shard
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=3600
MpiDefault=none
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=16 RealMemory=8000 Gres={gres} State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=16 RealMemory=8000 Gres={gres} State=UNKNOWN
PartitionName=gpu Nodes=n1,n2 Default=YES MaxTime=INFINITE DefMemPerCPU=100 State=UP
"""
_ACCOUNTED = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePass={folder}/munge.sock
AccountingStoragePort={port}
AccountingStorageTRES=gres/gpu,gres/shard"""
_CGROUP_CONF = "CgroupPlugin=autodetect\nCgroupMountpoint=/sys/fs/cgroup\nConstrainCores=no\n"


def missing_daemons() -> list[str]:
    """Return which of Slurm's daemons are not installed, or why they could not run here."""
    missing = [name for name in DAEMONS if shutil.which(name, path=_PATH) is None]
    return missing or (["root rights"] if os.geteuid() else [])


class SlurmDaemons:
    """Starts and stops them; use it as a context manager.

    Args:
        folder: Everything lies there; its path is short enough for a socket.
        tracker: How Slurm finds the processes of a job: linuxproc, or cgroup, so that others can find them too.
        accounts: With slurmdbd, for sacct.
        settings: Further lines of slurm.conf.
    """

    def __init__(self, folder: Path, *, tracker: str = "linuxproc", accounts: bool = False, settings: str = "") -> None:
        self.folder = folder
        self._tracker = tracker
        self._accounts = accounts
        self._settings = settings
        self._ports = free_ports(5)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> SlurmDaemons:
        self._write()
        key, munge_socket = self.folder / "munge.key", self.folder / "munge.sock"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("log", "pid", "seed")]
        self._start("munged", ["munged", "-F", "--force", f"--key-file={key}", f"--socket={munge_socket}", *files])
        try:
            _wait_until(munge_socket.exists)
            if self._accounts:
                self._start_accounting()
            self.start_controller()
            for node in NODES:
                self.start_node(node)
            self.wait_ready()
        except BaseException:
            self._stop_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.SubprocessError, TimeoutError):
            self.cancel_all()
        self._stop_all()

    def _stop_all(self) -> None:
        for name in ("slurmctld", *NODES, "slurmdbd", "mariadbd", "munged"):
            self.stop(name)

    def _start_accounting(self) -> None:
        slurm_accounting.prepare(self.folder, port=self._ports[3], database_port=self._ports[4])
        for name, command in slurm_accounting.commands(self.folder, database_port=self._ports[4]).items():
            self._start(name, command)
            # slurmdbd asks again only 5 s later.
            _wait_until((self.folder / "database.sock").exists)
        cluster = ["sacctmgr", "--immediate", "add", "cluster", "test"]
        _wait_until(lambda: self.run_or_again(cluster) != "again")

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._start("slurmctld", ["slurmctld", "-D"])

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        self._start(node, ["slurmd", "-D", "-N", node])

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End slurmctld, munged, or the slurmd of a node, and wait until it is gone."""
        process = self._running.pop(name, None)
        if process is not None:
            end_process(process, number)

    def run(self, command: Sequence[str]) -> str:
        """Run one of Slurm's commands and return what it writes."""
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            errors="replace",  # the name of a job may be any bytes
            timeout=60,
            check=False,
            cwd=self.folder,
        )
        if done.returncode:
            raise subprocess.SubprocessError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
        return done.stdout

    def run_or_again(self, command: Sequence[str]) -> str:
        """Return the same; `again` while Slurm does not answer."""
        try:
            return self.run(command)
        except subprocess.SubprocessError:
            return "again"

    def submit(self, *flags: str, script: str) -> str:
        """Submit a job; return its id."""
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        return self.run(["sbatch", "--parsable", "--output", f"{self.folder}/%j.out", *flags, str(path)]).strip()

    def job(self, job_id: str) -> Mapping[str, Any]:
        """Return what squeue says of a job; empty once it is forgotten."""
        return next((row for row in self._jobs() if str(row["job_id"]) == job_id), {})

    def _jobs(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run(["squeue", "--json"]))["jobs"]
        return [{name: _as_in_22_05(name, value) for name, value in row.items()} for row in rows]

    def output(self, job_id: str) -> str:
        """Return what a job printed."""
        path = self.folder / f"{job_id}.out"
        return path.read_text() if path.exists() else ""

    def cancel_all(self) -> None:
        """End all jobs, and wait until no node holds any."""
        self.run(["scancel", "--user=root"])
        _wait_until(lambda: not self.run(["squeue", "-h"]).strip())

    def wait_answering(self) -> None:
        """Wait until slurmctld answers."""

        def answers() -> bool:
            with contextlib.suppress(subprocess.SubprocessError):
                return bool(self.run(["sinfo", "-h"]))
            return False

        _wait_until(answers)

    def wait_saved(self) -> None:
        """Wait until slurmctld has saved its jobs after this instant."""
        path, now = self.folder / "state" / "job_state", time.time()
        _wait_until(lambda: path.exists() and path.stat().st_mtime > now)

    def wait_ready(self) -> None:
        """Wait until both nodes are idle."""

        def is_ready() -> bool:
            with contextlib.suppress(subprocess.SubprocessError):
                return self.run(["sinfo", "-h", "-o", "%T %D"]).split() == ["idle", str(len(NODES))]
            return False

        _wait_until(is_ready)

    def wait_for(self, job_id: str, *states: str) -> None:
        """Wait until a job is in one of these states."""
        _wait_until(lambda: self.job(job_id).get("job_state", "") in states)

    def wait_for_task(self, name: str, state: str) -> None:
        """Wait until a task of an array, ARRAY_TASK, is in a state."""
        _wait_until(
            lambda: any(
                f"{row['array_job_id']}_{row['array_task_id']}" == name and row["job_state"] == state
                for row in self._jobs()
            )
        )

    def _write(self) -> None:
        (self.folder / "state").mkdir()
        lines = []
        for gpu in range(GPUS_PER_NODE):
            device = self.folder / f"gpu{gpu}"
            subprocess.run(["mknod", "-m", "666", str(device), "c", "240", str(gpu)], check=True)
            lines.append(f"NodeName=n[1-2] Name=gpu Type=g{gpu} File={device}")
            lines.append(f"NodeName=n[1-2] Name=shard Type=g{gpu} Count={SHARDS_PER_GPU} File={device}")
        (self.folder / "gres.conf").write_text("AutoDetect=off\n" + "\n".join(lines) + "\n")
        gres = ",".join(f"gpu:g{gpu}:1,shard:g{gpu}:{SHARDS_PER_GPU}" for gpu in range(GPUS_PER_NODE))
        host, ports = socket.gethostname().split(".")[0], self._ports
        accounting = (
            _ACCOUNTED.format(port=ports[3], folder=self.folder)
            if self._accounts
            else "AccountingStorageType=accounting_storage/none"
        )
        conf = _CONF.format(
            folder=self.folder,
            host=host,
            gres=gres,
            port=ports[0],
            port1=ports[1],
            port2=ports[2],
            tracker=self._tracker,
            accounting=accounting,
        )
        (self.folder / "cgroup.conf").write_text(_CGROUP_CONF)
        (self.folder / "slurm.conf").write_text(conf + self._settings)
        shutil.copy(_LUA, self.folder / "job_submit.lua")

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._running[name] = subprocess.Popen(
                command, env=self.environment, stdout=output, stderr=output, cwd=self.folder, start_new_session=True
            )


def _as_in_22_05(name: str, value: Any) -> Any:
    """Return a value of a newer Slurm, which writes numbers as objects and states as lists, as 22.05 does."""
    if isinstance(value, dict) and "number" in value:
        return value["number"] if value["set"] else None
    return ",".join(value) if name == "job_state" and isinstance(value, list) else value


def _wait_until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _WAIT_S
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError("Slurm did not come to it in time")
        time.sleep(0.2)
