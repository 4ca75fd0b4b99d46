"""What tests/end_to_end/test_ray.py runs inside of the namespace with Ray's Python: one story each, told as JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

import cotenant.ray
from examples.ray import tune_trials
from tests.support.ray_cluster import ROOT, RayCluster, ray_python, wait_for

GPU = ("--gpu", "*=NVIDIA A10:24GiB", "--interval", "0.5")
LIGHT = "memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
HEAVY = "memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"
CORE = 0
OBSERVED_S = 75.0
_DRIVER = """
import ray, time, cotenant.ray
ray.init(address="auto")
jobs = [cotenant.ray.submit("memory=1GiB", time.sleep, 600) for _ in range(2)]
time.sleep(600)
"""

_LEAVER = """
import ray, time, cotenant.ray
ray.init(address="auto", log_to_driver=False)
job = cotenant.ray.submit("memory=1GiB", time.sleep, 600)
job.actor(60)
ray.shutdown()
try:
    job.result(30)
except cotenant.ray.JobStoppedError as error:
    print(error)
"""


def look(seconds: float, path: str = "") -> dict[str, Any]:
    """Run as a job: say where it is; report until somebody asks it to stop."""
    if path:
        with open(path, "a") as file:  # noqa: PTH123 (runs where nothing of ours is needed)
            file.write("begun\n")
    began_s, step = time.time(), 0
    while time.time() < began_s + seconds and not cotenant.ray.should_stop():
        step += 1
        time.sleep(0.02)
        cotenant.ray.report(step)
    node_hex = ray.get_runtime_context().get_node_id()
    return {
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "node": next(row["NodeName"] for row in ray.nodes() if row["NodeID"] == node_hex),
        "began_s": began_s,
        "ended_s": time.time(),
    }


class Printing:
    """An actor of Ray's own that prints its steps; its process is pinned to the core that plays a GPU.

    Args:
        ends: Where it notes its process, and when each step ended by the machine's clock.
    """

    def __init__(self, ends: str) -> None:
        os.sched_setaffinity(0, {CORE})
        self._ends = open(ends, "w", buffering=1)  # noqa: PTH123, SIM115 (kept open, where nothing of ours is needed)
        self._ends.write(f"{os.getpid()}\n")

    def train(self) -> None:
        """Step until it is killed."""
        step = 0
        while True:
            step += 1
            used_s = time.thread_time()
            while time.thread_time() < used_s + 0.05:
                pass
            print(f"step {step} loss 0.5", flush=True)  # noqa: T201 (what is observed)
            self._ends.write(f"{time.monotonic_ns()}\n")


def drive_printing(ends: str) -> None:
    """Be the driver of a job of Ray with one such actor."""
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    actor = ray.remote(num_gpus=0.5, num_cpus=0)(Printing).remote(ends)
    ray.get(actor.train.remote())


class Model:
    """An actor with a state."""

    def __init__(self, weight: float) -> None:
        self._weight = weight

    def weight(self) -> float:
        """Return it."""
        return self._weight

    def gpu(self) -> str:
        """Return which GPUs its process sees."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def sharing(cluster: RayCluster) -> dict[str, Any]:
    """Six jobs: who shared, and whether each saw the GPU of its note; a killed bridge; actors, one of them wrong."""
    first = cluster.bridge(*GPU)
    jobs = [cotenant.ray.submit(wishes, look, 15.0) for wishes in (HEAVY, HEAVY, HEAVY, LIGHT, LIGHT, HEAVY)]
    wait_for(cluster.log, lambda: sum("cotenant placed" in job.note for job in jobs) >= 5)
    first.send_signal(signal.SIGKILL)
    cluster.bridge(*GPU, log="second.log")
    notes = [job.note for job in jobs]
    waiting = [index for index, note in enumerate(notes) if "placed" not in note]
    seen = [job.result(120) for job in jobs]
    actor = cotenant.ray.start(LIGHT, Model, 0.5)
    handle = actor.actor(60)
    weight, gpu, note = ray.get(handle.weight.remote()), ray.get(handle.gpu.remote()), actor.note
    actor.end()
    actor.result(60)
    broken = cotenant.ray.start(LIGHT, Model)
    try:
        broken.result(60)
        raised = ""
    except Exception as error:
        raised = type(error).__name__
    return {
        "notes": notes,
        "seen": seen,
        "waiting": waiting,
        "actor": [weight, gpu, note],
        "raised": raised,
        "disagreements": [
            line for log in ("bridge.log", "second.log") for line in cluster.log(log).splitlines() if "disagree" in line
        ],
        "windows": [line for line in cluster.log("second.log").splitlines() if "ms a step" in line],
    }


def orders(cluster: RayCluster) -> dict[str, Any]:
    """A job that is queued again, one stopped, drivers that are killed or leave, GPUs given back."""
    cluster.bridge(*GPU)
    journal = cluster.folder / "journal"
    job = cotenant.ray.submit(LIGHT, look, 20.0, str(journal))
    job.actor(60)
    wait_for(cluster.log, journal.exists)
    first = cluster.cotenant("engine", "ray", "--order", "requeue", job.job_id, "--grace", "10")
    wait_for(cluster.log, lambda: journal.read_text().count("begun") == 2)
    second = cluster.cotenant("engine", "ray", "--order", "stop", job.job_id, "--grace", "10")
    stopped = job.result(60)
    unknown = cluster.cotenant("engine", "ray", "--order", "stop", "nobody")
    driver = subprocess.Popen([str(ray_python()), "-c", _DRIVER], cwd=ROOT)
    wait_for(cluster.log, lambda: cluster.log().count("cotenant placed") >= 4)
    driver.kill()
    driver.wait()
    wait_for(cluster.log, lambda: cluster.log().count("its driver is gone") == 2)
    given = cluster.cotenant("engine", "ray", "--give-back")
    leaver = subprocess.run(
        [str(ray_python()), "-c", _LEAVER], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    return {
        "begun": journal.read_text().count("begun"),
        "codes": [first.returncode, second.returncode, unknown.returncode],
        "said": unknown.stderr,
        "ran_s": stopped["ended_s"] - stopped["began_s"],
        "given_back": given.stdout.count("given back"),
        "left": [leaver.returncode, leaver.stdout + leaver.stderr[-2000:]],
    }


class Light(Model):
    """The same, needing nothing to be made."""

    def __init__(self) -> None:
        super().__init__(0.5)


def observed(cluster: RayCluster) -> dict[str, Any]:
    """Two jobs that Ray placed by itself, one alone first and then beside the other, each with its own account."""
    words = ["observe", "ray", "--standin-cores", str(CORE), "--interval", "1", "--output", "json"]
    said: list[tuple[int, str]] = []
    ends = {name: cluster.folder / f"{name}.ends" for name in ("first", "second")}
    with ExitStack() as stack:
        command = [str(ROOT / ".venv" / "bin" / "cotenant"), *words]
        observer = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        reader = threading.Thread(target=_stamp, args=(observer.stdout, said))
        reader.start()
        for name, path in ends.items():
            stack.callback(_start_driver(cluster, name, path).kill)
            time.sleep(OBSERVED_S)
        observer.send_signal(signal.SIGINT)
        reader.join()
    return {"rows": _beside_own_accounts(said, {name: path.read_text().split() for name, path in ends.items()})}


def _start_driver(cluster: RayCluster, name: str, ends: Path) -> subprocess.Popen[bytes]:
    """Start a job of Ray; return when its actor is there."""
    code = f"from tests.support.ray_stories import drive_printing; drive_printing({str(ends)!r})"
    with (cluster.folder / f"{name}.log").open("wb") as log:
        driver = subprocess.Popen([ray_python(), "-c", code], cwd=ROOT, stdout=log, stderr=log)
    wait_for(lambda: cluster.log(f"{name}.log"), ends.exists, seconds=120)
    return driver


def _stamp(lines: Iterable[str], said: list[tuple[int, str]]) -> None:
    said.extend((time.monotonic_ns(), line) for line in lines)


def _beside_own_accounts(said: list[tuple[int, str]], ends: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Return what was said of each window, and the mean step by the job's own clock over the same time."""
    rows = []
    for at_ns, line in said:
        row = json.loads(line)
        [name] = [name for name, (pid, *_) in ends.items() if row["job_id"].endswith(f".{pid}")]
        inside = [int(end) for end in ends[name][1:] if at_ns - (row["window_ms"] + 1_000) * 1e6 <= int(end) <= at_ns]
        rows.append(row | {"name": name, "own_step_ms": (inside[-1] - inside[0]) / 1e6 / (len(inside) - 1)})
    return rows


def page(cluster: RayCluster) -> dict[str, Any]:
    """What the page says to type, and its own program with a function and a class of one's own."""
    cluster.bridge(*GPU)
    text = (ROOT / "docs" / "ray.md").read_text()
    [program, *_] = re.findall(r"```python\n(import ray\n.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"train": lambda weight: weight * 10, "Model": Light}
    environment = {**os.environ, "HOME": str(cluster.folder)}
    spoken = [line.split("#")[0].split() for line in re.findall(r"^    python (.+)$", text, re.MULTILINE)]
    done = [
        subprocess.run(
            [ray_python(), *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        for words in spoken
    ]
    ray.shutdown()
    exec(compile(program, "docs/ray.md", "exec"), names)
    return {
        "result": names["job"].result(60),
        "placed": cluster.log().count("cotenant placed"),
        "codes": [one.returncode for one in done],
        "said": [one.stdout[-2000:] + one.stderr[-2000:] for one in done],
    }


def tune(cluster: RayCluster) -> dict[str, Any]:
    """The example search: losses, and how many trials shared a GPU at the same time."""
    cluster.bridge(*GPU)
    results = tune_trials.search(str(cluster.folder / "tune"))
    trials = [result.metrics for result in results]
    return {
        "errors": [str(error) for error in results.errors],
        "losses": sorted(trial["loss"] for trial in trials),
        "pairs": sum(
            one["gpu"] == other["gpu"] and one["began_s"] < other["ended_s"] and other["began_s"] < one["ended_s"]
            for index, one in enumerate(trials)
            for other in trials[:index]
        ),
        "reports": [len(result.metrics_dataframe) for result in results],
    }


_STORIES = {"sharing": sharing, "orders": orders, "tune": tune, "observed": observed, "page": page}


def main() -> None:
    """Tell the story that the command line names."""
    nodes = ("n1",) if sys.argv[1] in {"tune", "observed"} else ("n1", "n2")
    with RayCluster(nodes) as cluster:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        try:
            told = _STORIES[sys.argv[1]](cluster)
        except BaseException:
            for log in sorted(cluster.folder.glob("*.log")):
                sys.stderr.write(f"--- {log.name}\n{log.read_text()[-3000:]}\n")
            raise
        finally:
            # While the head still answers: otherwise this process ends before it can say why.
            ray.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
