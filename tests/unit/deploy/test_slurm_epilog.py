"""The epilog that writes down what jobs of Slurm had and how they ended, over what a real scontrol said."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cotenant_simulator.readers.accounting import read_accounting

EPILOG = Path(__file__).resolve().parents[3] / "deploy" / "slurm" / "epilog_slurmctld.sh"
# As Slurm 22.05.8 wrote it, with fewer fields.
ROW = (
    "JobId=7 JobName={name} UserId=ada(1000) GroupId=ada(1000) JobState=COMPLETING Reason={reason} ExitCode={code} "
    "SubmitTime=2026-11-24T02:52:03 EligibleTime=2026-11-24T02:52:03 StartTime=2026-11-24T02:52:04 "
    "EndTime=2026-11-24T02:52:09 NodeList= BatchHost=n1 NumNodes={nodes} NumCPUs=1 TRES=cpu=1,mem=100M,node=1 "
    "JOB_GRES={gres}   Nodes=n[1-2] CPU_IDs=0 Mem=100 GRES= MinCPUsNode=1 StdErr={errors} StdIn=/dev/null StdOut=x "
)


class Site:
    """A scontrol, and the file that the epilog writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "jobs.txt"
        self.errors = folder / "7.out"

    def end(self, *, name: str = "train", reason: str = "None", code: str = "0:0", gres: str = "gpu:1") -> None:
        row = ROW.format(name=name, reason=reason, code=code, gres=gres, nodes=2, errors=self.errors)
        (self.folder / "row").write_text(row + "\n")
        command = self.folder / "scontrol"
        command.write_text(f"#!/bin/sh\ncat {self.folder}/row\n")
        command.chmod(0o755)
        named = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": name, "SLURM_JOB_USER": "ada"}
        places = {"PATH": f"{self.folder}:{os.environ['PATH']}", "COTENANT_ACCOUNTING_FILE": str(self.file)}
        done = subprocess.run([str(EPILOG)], env={**os.environ, **named, **places}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")

    @property
    def rows(self) -> list[list[str]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [line.split("|") for line in lines[1:]]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    ("gres", "said"),
    [
        ("gpu:1", "node=2,gres/gpu=1"),
        ("gpu:g0:2,gpu:g1:2", "node=2,gres/gpu=4"),
        ("gpu:a100:4(IDX:0-3)", "node=2,gres/gpu=4"),
        ("shard:g1:2", "node=2,gres/shard=2"),
    ],
)
def test_what_a_job_had_is_written_down_as_sacct_would(site: Site, gres: str, said: str) -> None:
    site.end(gres=gres)
    times = ["2026-11-24T02:52:03", "2026-11-24T02:52:04", "2026-11-24T02:52:09"]
    assert site.rows == [["7", "train", "ada", *times, "COMPLETED", said]]


def test_a_job_without_gpus_is_not_written_down(site: Site) -> None:
    site.end(gres="(null)")
    assert site.rows == []


@pytest.mark.parametrize(
    ("reason", "code", "printed", "state"),
    [
        ("None", "0:0", "CUDA out of memory, tried again", "COMPLETED"),
        ("NonZeroExitCode", "1:0", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "OUT_OF_MEMORY"),
        ("NonZeroExitCode", "1:0", "KeyError: 'lr'", "FAILED"),
        ("OutOfMemory", "0:125", "", "OUT_OF_MEMORY"),
        ("TimeLimit", "0:15", "", "TIMEOUT"),
        ("None", "0:9", "", "FAILED"),
    ],
)
def test_an_end_for_lack_of_memory_is_told_from_others(
    site: Site, reason: str, code: str, printed: str, state: str
) -> None:
    site.errors.write_text(printed)
    site.end(reason=reason, code=code)
    assert [row[6] for row in site.rows] == [state]


@pytest.mark.parametrize("name", ["a|b c", "x UserId=eve(0) JOB_GRES=gpu:64", "new\nline", "$(touch pwned)", "ü" * 300])
def test_a_job_of_any_name_is_one_row_of_its_own(site: Site, name: str) -> None:
    site.end(name=name, gres="gpu:2")
    [row] = site.rows
    assert (len(row), row[0], row[-1]) == (8, "7", "node=2,gres/gpu=2")
    assert not (site.folder / "pwned").exists()


def test_the_shadow_report_reads_what_was_written_down(site: Site) -> None:
    site.end(gres="gpu:2")
    site.end(gres="shard:g1:2")
    found = read_accounting(site.file)
    assert [(job.job_id, job.gpus, job.ended_at_ms - job.started_at_ms) for job in found.jobs] == [("7", 2, 5_000)]
    assert found.skipped == {"a part of a GPU (gres/shard), shared already": 1}
