"""The state folder of an agent with a live attempt and with one that ended untold.

What differs between machines is written as a placeholder: {root}, {boot_id}, {python}, {path}; processes are put in by
number.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from cotenant_agent.processes import read_boot_id
from tests.support.agent import GPU, TRAINING, running_agent, wait_until, write_script
from tests.support.fake_scheduler import FakeScheduler, launch

LIVE, ENDED = "job-live", "job-ended"
KEPT_FILES = ("spec.json", "state.json", "lease.json", "observed.json", "exit.json", "out.log")


def write_state(folder: Path, workplace: Path) -> None:
    """Run two jobs under a real agent that is killed, and keep what then lies in its folder.

    Args:
        folder: Where the golden goes.
        workplace: A temporary folder for the real agent.
    """
    state = workplace / "state"
    script = write_script(workplace, TRAINING)
    with FakeScheduler() as scheduler, running_agent(state, scheduler) as agent:
        for job_id, steps, step_s in ((LIVE, 4_000, 0.05), (ENDED, 40, 0.05)):
            order = launch(job_id, [sys.executable, script, str(steps), str(step_s)], GPU, checkpoint_ms=700)
            order.spec.graph_sha256 = "ab" * 32
            order.spec.progress_regex = "step (?P<step>[0-9]+)"
            scheduler.send(launch_job=order)
            scheduler.wait_for_start(job_id)
        scheduler.wait_for_observation(LIVE, lambda item: item.window_steps > 0)
        agent.kill()
        wait_until((state / "jobs" / f"{ENDED}.1" / "exit.json").exists, "the short job has ended")
        _keep(state, folder, workplace)


def _keep(state: Path, folder: Path, workplace: Path) -> None:
    for job_id in (LIVE, ENDED):
        source, target = state / "jobs" / f"{job_id}.1", folder / "jobs" / f"{job_id}.1"
        target.mkdir(parents=True)
        for name in KEPT_FILES:
            if (source / name).exists():
                text = (source / name).read_text()
                for found, placeholder in _placeholders(workplace):
                    text = text.replace(found, placeholder)
                (target / name).write_text(text)
        progress = state / "run" / f"{job_id}.1" / "progress.json"
        if progress.exists():
            (folder / "run" / f"{job_id}.1").mkdir(parents=True)
            shutil.copy(progress, folder / "run" / f"{job_id}.1")


def _placeholders(workplace: Path) -> list[tuple[str, str]]:
    repository = str(Path(__file__).resolve().parents[2])
    return [
        (read_boot_id(), "{boot_id}"),
        (sys.executable, "{python}"),
        (str(workplace), "{root}"),
        (repository, "{repository}"),
        (os.uname().nodename, "{host}"),
        (os.environ["PATH"], "{path}"),
    ]


def lay_out(folder: Path, state: Path, *, shim: tuple[int, int], job: tuple[int, int]) -> None:
    """Make the folder look as if it had been written on this machine.

    Args:
        folder: The golden.
        state: Where the agent will look.
        shim: Process id and start of whoever plays the shim of the live attempt.
        job: The same of the job.
    """
    shutil.copytree(folder / "jobs", state / "jobs", dirs_exist_ok=True)
    if (folder / "run").exists():
        shutil.copytree(folder / "run", state / "run", dirs_exist_ok=True)
    for path in (state / "jobs").rglob("*"):
        if path.is_file():
            text = path.read_text().replace("{boot_id}", read_boot_id()).replace("{root}", str(state.parent))
            path.write_text(text.replace("{python}", sys.executable).replace("{path}", os.environ["PATH"]))
    (state / "checkpoints" / LIVE / "1").mkdir(parents=True)
    (state / "checkpoints" / ENDED / "1").mkdir(parents=True)
    (state / "run" / f"{LIVE}.1").mkdir(parents=True, exist_ok=True)
    live = state / "jobs" / f"{LIVE}.1"
    _change(live / "state.json", _process_fields("shim", shim) | _process_fields("job", job))
    _change(live / "lease.json", {"deadline_boot_ms": time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + 60_000})
    # The golden's machine had been up for longer than this one may have been, and reports from the future do not count.
    for progress in (state / "run").rglob("progress.json"):
        _change(progress, {"at_ns": time.monotonic_ns()})


def _process_fields(who: str, process: tuple[int, int]) -> dict[str, Any]:
    return {f"{who}_pid": process[0], f"{who}_start_ticks": process[1]}


def _change(path: Path, fields: dict[str, Any]) -> None:
    """Set fields that the file has; a golden without them is none of ours."""
    content = json.loads(path.read_text())
    assert fields.keys() <= content.keys(), f"{path.name} has {sorted(content)}"
    path.write_text(json.dumps({**content, **fields}))
