"""What past jobs had, as a real Slurm accounts for it: by slurmdbd and sacct, and by the epilog where there is none."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_simulator.readers.accounting import Accounting, read_accounting
from tests.support.scheduler_process import wait_until
from tests.support.slurm_accounting import missing_accounting
from tests.support.slurm_daemons import SlurmDaemons, missing_daemons

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.alone,
    pytest.mark.skipif(bool(missing_daemons()), reason=f"not installed: {', '.join(missing_daemons())}"),
    pytest.mark.timeout(400),
]
ROOT = Path(__file__).resolve().parents[2]
EPILOG = ROOT / "deploy" / "slurm" / "epilog_slurmctld.sh"
OUT_OF_MEMORY = "echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; sleep 1; exit 1"


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def run_jobs(daemons: SlurmDaemons) -> None:
    """Run a job with one GPU, one with two, one with half of one, and one with none."""
    jobs = [
        daemons.submit("--gres=gpu:g0:1", "--job-name=train", script=OUT_OF_MEMORY),
        daemons.submit("--gres=gpu:2", "--job-name=pair", script="sleep 1"),
        daemons.submit("--gres=shard:g1:2", "--job-name=half", script="sleep 1"),
        daemons.submit("--job-name=plain", script="sleep 1"),
    ]
    for job_id in jobs:
        daemons.wait_for(job_id, "COMPLETED", "FAILED", "")


def check(found: Accounting) -> None:
    assert {(job.name, job.user, job.gpus) for job in found.jobs} == {("train", "root", 1), ("pair", "root", 2)}
    assert all(job.submitted_at_ms <= job.started_at_ms < job.ended_at_ms for job in found.jobs)
    assert found.skipped["a part of a GPU (gres/shard), shared already"] == 1


@pytest.mark.skipif(bool(missing_accounting()), reason=f"not installed: {', '.join(missing_accounting())}")
def test_the_pages_sacct_tells_what_the_shadow_report_needs(folder: Path) -> None:
    page = (ROOT / "docs" / "slurm.md").read_text()
    line = re.search(r"^    (sacct .*?) > sacct.txt$", page, re.MULTILINE | re.DOTALL)
    assert line is not None
    words = line[1].replace("\\\n", " ").split()
    words[words.index("--starttime") + 1] = "now-1days"
    words[words.index("--endtime") + 1] = "now+1days"
    path = folder / "sacct.txt"
    with SlurmDaemons(folder, accounts=True) as daemons:
        run_jobs(daemons)

        def is_told() -> bool:
            path.write_text(daemons.run(words))
            return path.read_text().count("Unknown") == 0 and len(path.read_text().splitlines()) == 5

        wait_until(is_told, what="slurmdbd has all ends")
    check(read_accounting(path))
    assert read_accounting(path).skipped["no GPUs"] == 1


def test_without_slurmdbd_the_epilog_tells_it_too_and_what_ran_out_of_memory(folder: Path) -> None:
    path, epilog = folder / "jobs.txt", folder / "epilog.sh"
    exports = f"export SLURM_CONF={folder}/slurm.conf COTENANT_ACCOUNTING_FILE={path}"
    epilog.write_text(f"#!/bin/bash\n{exports}\nexec {EPILOG}\n")
    epilog.chmod(0o755)
    with SlurmDaemons(folder, settings=f"EpilogSlurmctld={epilog}\n") as daemons:
        run_jobs(daemons)
        wait_until(lambda: path.exists() and len(path.read_text().splitlines()) == 4, what="every end is written down")
    check(read_accounting(path))
    states = {line.split("|")[1]: line.split("|")[6] for line in path.read_text().splitlines()[1:]}
    assert states == {"train": "OUT_OF_MEMORY", "pair": "COMPLETED", "half": "COMPLETED"}
