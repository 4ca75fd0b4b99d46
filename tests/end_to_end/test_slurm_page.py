"""The page's way from advice to the first shared GPU, typed as it is printed, beside a real Slurm."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scheduler_process import SchedulerProcess, wait_until
from tests.support.slurm_daemons import SlurmDaemons, missing_daemons

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.alone,
    pytest.mark.skipif(bool(missing_daemons()), reason=f"not installed: {', '.join(missing_daemons())}"),
    pytest.mark.timeout(700),
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "slurm.md"
COTENANT = str(Path(sys.executable).with_name("cotenant"))
_TRAINING = """\
exec taskset --cpu-list 0 {python} -uc '
import time
step = 0
while True:
    step += 1
    end = time.monotonic() + 0.05
    while time.monotonic() < end: pass
    print("step", step)
'
"""


class Site:
    """Slurm with a scheduler that decides, as its administrator sees them."""

    def __init__(self, daemons: SlurmDaemons, scheduler: str) -> None:
        self.daemons = daemons
        self._scheduler = scheduler

    def typed(self, beginning: str, **instead: str) -> str:
        """Type the first line of the page that begins so; return what it prints."""
        line = next(line for line in page_lines() if line.startswith(beginning))
        for before, after in {"gpu*": "n*", **instead}.items():
            line = line.replace(before, after)
        return self.run(line)

    def run(self, line: str) -> str:
        if line.startswith("cotenant engine"):
            line = f"{line} --once --scheduler {self._scheduler}"
        command = line.replace("cotenant ", f"{shlex.quote(COTENANT)} ", 1) if line.startswith("cotenant ") else line
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.daemons.folder,
            env=self.daemons.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, beginning: str) -> str:
        """Type a line with sbatch; return the job's id."""
        return self.typed(beginning).split()[-1]


def page_lines() -> list[str]:
    return [line.partition(" #")[0].rstrip() for line in re.findall(r"^    (\S.*)$", PAGE.read_text(), re.MULTILINE)]


@pytest.fixture
def site() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
    (folder / "scheduler").mkdir()
    try:
        with SlurmDaemons(folder, tracker="cgroup") as daemons, SchedulerProcess(folder / "scheduler") as scheduler:
            (folder / "job.sh").write_text("#!/bin/bash\n" + _TRAINING.format(python=sys.executable))
            yield Site(daemons, scheduler.address)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_page_leads_from_advice_to_a_shared_gpu_and_measures_it(site: Site) -> None:
    asking = [site.submit("sbatch --gres=gpu:1") for _ in range(5)]
    site.typed("cotenant engine slurm --advise")
    assert "AdminComment=cotenant: " in site.typed("scontrol show job", **{"4711": asking[-1]})
    site.daemons.cancel_all()
    # Four GPUs and five jobs, so that two of them share.
    placed = [site.submit("sbatch --comment") for _ in range(5)]
    said = site.typed("cotenant engine slurm --place")
    assert said.count("cotenant placed") == 5
    for job_id in placed:
        site.daemons.wait_for(job_id, "RUNNING")
    rows = [site.daemons.job(job_id) for job_id in placed]
    assert len({(row["nodes"], row["gres_detail"][0].split(":")[1]) for row in rows}) == 4
    site.run(f"scancel {' '.join(placed[1:])}")
    # Beside a silent process of somebody else on the core, windows are told from the second minute on only (the page).
    told = next((found for seconds in (12, 180) if (found := observed(site, seconds=seconds))), [])
    assert told
    assert {row["job_id"] for row in told} == {f"slurm/{placed[0]}"}
    assert all(row["step_ms"] >= 50 for row in told)
    site.run(f"cotenant engine slurm --order requeue {placed[0]}")
    wait_until(lambda: site.daemons.job(placed[0])["job_state"] == "PENDING", what="the job waits again")


def observed(site: Site, *, seconds: int) -> list[dict[str, Any]]:
    said = site.run(f"cotenant observe slurm --standin-cores 0 --seconds {seconds} --interval 0.5 --output json")
    return [json.loads(line) for line in said.splitlines()]
