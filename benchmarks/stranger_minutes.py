"""The first minutes with own scripts: `up`, two untouched scripts on one device, co-located, and what was said of them.

The scripts look nothing like examples/: one has argparse and tqdm's bar, the other is Lightning with a bar of its own.
They run in a Python of their own (COTENANT_STRANGERS_PYTHON, or --python: one with torch, lightning and tqdm), outside
the clone, against an empty state with one stand-in device. Both accept a slowdown of 300 %, since each uses the core
whole: a stranger reads that in the reason of the second job. Lightning draws with rich where that is installed: its
script gets TTY_COMPATIBLE=1, as docs/progress.md says. With `--plain` two other scripts take their place, which
need torch alone, wait for their input in loops of their own and accept the usual 20 %; with `--transformers` a Trainer
of transformers and a loop of accelerate, which wait for their input and accept 300 % as well. They are co-located once
both train there: one that is being measured next to a paused one is not yet. Minutes are of the wall, and of a machine
that may be busy: `load` is its load average. `memory_error_ratio` compares the peak that was measured, with the import
baseline of the stand-in, with what the process says of itself at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.interruptions import unwind_when_ended
from tests.support.real_cluster import RealCluster, real_cluster

PATIENCE_S: Final = 1800.0
LOOK_EVERY_S: Final = 5.0
"""A look is a program; one after the other they would be foreign load, beside which no window counts."""
VARIABLE: Final = "COTENANT_STRANGERS_PYTHON"
_MEASURING: Final = ("STARTS_TO_BE_MEASURED", "IS_MEASURED")
_SHOWN: Final = 500
"""Characters of the end of a log that lacks the line."""
_OWN_PEAK: Final = re.compile(r"own peak (\d+)")
_TABLE: Final = """
import argparse, resource
import torch
from torch import nn
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
options = parser.parse_args()
net = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(options.epochs):
    for _ in (bar := tqdm(range(400), desc=f"epoch {epoch}")):
        x, y = torch.randn(options.batch_size, 128), torch.randint(0, 10, (options.batch_size,))
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        bar.set_postfix(loss=loss.item())
print("own peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
_LIGHTNING: Final = """
import resource, sys
import lightning, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

if __name__ == "__main__":
    data = TensorDataset(torch.randn(3200, 3, 32, 32), torch.randint(0, 10, (3200,)))
    trainer = lightning.Trainer(max_epochs=int(sys.argv[1]), logger=False, enable_checkpointing=False)
    trainer.fit(Net(), DataLoader(data, batch_size=16))
    print("own peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
_BAR: Final = """
import argparse, resource, sys, time
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--updates", type=int, default=1000)
parser.add_argument("--width", type=int, default=256)
options = parser.parse_args()
model = torch.nn.GRU(32, options.width, batch_first=True)
head = torch.nn.Linear(options.width, 1)
optimizer = torch.optim.RMSprop([*model.parameters(), *head.parameters()], lr=1e-4)
began = time.monotonic()
for update in range(1, options.updates + 1):
    time.sleep(0.1)  # the next records are far away
    series = torch.randn(4, 12, 32)
    loss = (head(model(series)[0][:, -1]) - series.mean()).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    pace = update / (time.monotonic() - began)
    sys.stderr.write(f"\\r{update}/{options.updates} [00:01<01:00, {pace:.2f}it/s]")
print("own peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
_EPOCHS: Final = """
import resource, sys, time
import torch

def batches(count):
    for _ in range(count):
        time.sleep(0.12)  # a slow disk
        yield torch.randint(0, 500, (8, 16))

table, score = torch.nn.Embedding(500, 48), torch.nn.Linear(48, 500)
optimizer = torch.optim.Adagrad([*table.parameters(), *score.parameters()])
for epoch in range(int(sys.argv[1])):
    for number, words in enumerate(batches(50), 1):
        loss = torch.nn.functional.cross_entropy(score(table(words).mean(1)), words[:, 0])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(f"Epoch {epoch} [{number}/50] loss: {loss.item():.3f}", flush=True)
print("own peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""

_TRAINER: Final = """
import resource, sys, time
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class Reviews(torch.utils.data.Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        time.sleep(0.015)  # a tokenizer
        ids = torch.arange(index, index + 32) % 300
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[0] % 3}

if __name__ == "__main__":
    config = BertConfig(vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=64, num_labels=3)
    arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=8, num_train_epochs=int(sys.argv[1]),
                                  learning_rate=1e-4, logging_steps=50, save_strategy="no", report_to=[])
    Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Reviews()).train()
    print("own peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
_ACCELERATED: Final = """
import argparse, resource, time
import torch
from accelerate import Accelerator

class Frames(torch.utils.data.Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        time.sleep(0.02)  # a decoder
        return torch.rand(3, 24, 24), index % 5

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
epochs = parser.parse_args().epochs
accelerator = Accelerator(gradient_accumulation_steps=2)
network = torch.nn.Sequential(
    torch.nn.Conv2d(3, 24, 5, stride=2), torch.nn.GELU(), torch.nn.Conv2d(24, 48, 3, stride=2), torch.nn.GELU(),
    torch.nn.Flatten(), torch.nn.LazyLinear(5))
network(torch.zeros(1, 3, 24, 24))
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Frames(), batch_size=4)
network, optimizer, loader = accelerator.prepare(network, optimizer, loader)
done = 0
for epoch in range(epochs):
    for frames, labels in loader:
        with accelerator.accumulate(network):
            loss = torch.nn.functional.cross_entropy(network(frames), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            done += 1
            accelerator.print(f"epoch {epoch} step {done}/{epochs * 100} loss {loss.item():.3f}", flush=True)
print("own peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Script:
    """A script, what it is started with, the steps that it makes, the slowdown that it accepts, and its variables."""

    text: str
    words: tuple[str, ...]
    steps: int
    max_slowdown: str
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two scripts: how they are made of their epochs, how many these are by default, and what they import."""

    scripts: Callable[[int, int], dict[str, _Script]]
    epochs: tuple[int, int]
    libraries: str


def main(python: str = "", *, pair: str = "lightning", epochs: Sequence[int] = ()) -> dict[str, Any]:
    """Returns the minutes until both jobs share the device, and what was right about each.

    Args:
        python: Runs the scripts; empty = COTENANT_STRANGERS_PYTHON, or this one for the plain scripts.
        pair: lightning | plain | transformers.
        epochs: Of the first and of the second script: of 400 and 200 steps, plain ones of 100 and 50, those of
            transformers and accelerate of 200 and 100.
    """
    asked = _PAIRS[pair]
    python = python or (sys.executable if pair == "plain" else os.environ.get(VARIABLE, ""))
    needed = f"import {asked.libraries}"
    if not python or subprocess.run([python, "-c", needed], check=False, capture_output=True).returncode:
        return {"skipped": f"no Python with {asked.libraries}; name one in {VARIABLE}, or ask for --plain"}
    scripts = asked.scripts(*(epochs or asked.epochs))
    with tempfile.TemporaryDirectory(prefix="stranger-") as root:
        folder = Path(root)
        (folder / "state").mkdir()
        for name, script in scripts.items():
            (folder / f"{name}.py").write_text(script.text)
        began_s = time.monotonic()
        with real_cluster(folder / "state", "--allow-directory", str(folder)) as cluster:
            up_s = time.monotonic() - began_s
            found = _submit_both(cluster, folder, python, scripts, began_s)
    return {"up_minutes": up_s / 60, "load": os.getloadavg()[0], **found}


def _library_scripts(first: int, second: int) -> dict[str, _Script]:
    return {
        "table": _Script(text=_TABLE, words=("--epochs", str(first)), steps=400 * first, max_slowdown="3"),
        "classify": _Script(
            text=_LIGHTNING,
            words=(str(second),),
            steps=200 * second,
            max_slowdown="3",
            variables=("TTY_COMPATIBLE=1",),
        ),
    }


def _plain_scripts(first: int, second: int) -> dict[str, _Script]:
    updates = 100 * first
    return {
        "series": _Script(text=_BAR, words=("--updates", str(updates)), steps=updates, max_slowdown="0.2"),
        "words": _Script(text=_EPOCHS, words=(str(second),), steps=50 * second, max_slowdown="0.2"),
    }


def _transformers_scripts(first: int, second: int) -> dict[str, _Script]:
    return {
        "reviews": _Script(text=_TRAINER, words=(str(first),), steps=200 * first, max_slowdown="3"),
        "frames": _Script(text=_ACCELERATED, words=("--epochs", str(second)), steps=100 * second, max_slowdown="3"),
    }


_PAIRS: Final = {
    "lightning": _Pair(scripts=_library_scripts, epochs=(12, 6), libraries="torch, lightning, tqdm"),
    "plain": _Pair(scripts=_plain_scripts, epochs=(40, 80), libraries="torch"),
    "transformers": _Pair(scripts=_transformers_scripts, epochs=(12, 24), libraries="torch, transformers, accelerate"),
}


def _submit_both(
    cluster: RealCluster, folder: Path, python: str, scripts: Mapping[str, _Script], began_s: float
) -> dict[str, Any]:
    jobs = {
        name: _submit(cluster, folder, script, [python, f"{name}.py", *script.words])
        for name, script in scripts.items()
    }
    reasons: list[str] = []
    shared_s, says_the_same = _wait_until_shared(cluster, list(jobs.values()), began_s, reasons)
    sys.stderr.write(f"co-located after {shared_s} s; {reasons[-1] if reasons else 'no reason'}\n")
    ended = {name: _wait_for_end(cluster, job_id) for name, job_id in jobs.items()}
    baseline_bytes = _baseline_bytes(cluster.state_dir)
    return {
        "co_located_minutes": None if shared_s is None else shared_s / 60,
        "all_minutes": (time.monotonic() - began_s) / 60,
        "ps_and_explain_agree": says_the_same,
        "reasons_until_then": list(dict.fromkeys(reasons)),
        "jobs": {name: _judge(cluster, ended[name], scripts[name].steps, baseline_bytes) for name in jobs},
    }


def _submit(cluster: RealCluster, folder: Path, script: _Script, command: Sequence[str]) -> str:
    flags = ["--workdir", str(folder), "--steps", str(script.steps), "--max-slowdown", script.max_slowdown]
    flags += ["-o", "name", *(word for variable in script.variables for word in ("--env", variable))]
    done = cluster.cotenant("submit", *flags, "--", *command, timeout_s=PATIENCE_S)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def _wait_until_shared(
    cluster: RealCluster, job_ids: Sequence[str], began_s: float, reasons: list[str]
) -> tuple[float | None, bool]:
    """Returns when both shared the device, None = they never did; and whether `ps` and `explain` gave one reason."""
    says_the_same = True
    while time.monotonic() - began_s < PATIENCE_S:
        jobs = [_job(cluster, job_id) for job_id in job_ids]
        reasons += [job["reason"]["code"] for job in jobs]
        waiting = [job for job in jobs if job["phase"] == "JOB_PHASE_PENDING"]
        says_the_same = says_the_same and all(_explains_alike(cluster, job) for job in waiting)
        if all(map(_trains_beside_another, jobs)):
            return time.monotonic() - began_s, says_the_same
        if any(job["phase"] in ("JOB_PHASE_FINISHED", "JOB_PHASE_FAILED") for job in jobs):
            return None, says_the_same
        time.sleep(LOOK_EVERY_S)
    return None, says_the_same


def _trains_beside_another(job: dict[str, Any]) -> bool:
    is_there = job["phase"] == "JOB_PHASE_RUNNING" and bool(job.get("co_located_jobs"))
    return is_there and "pause" not in job and job["reason"]["code"] not in _MEASURING


def _explains_alike(cluster: RealCluster, job: dict[str, Any]) -> bool:
    """Whether `explain` names the code that `ps` shows; where the job has moved on in between nothing is compared."""
    told = cluster.cotenant("explain", job["job_id"]).stdout
    now = _job(cluster, job["job_id"])
    return now["reason"]["code"] != job["reason"]["code"] or job["reason"]["code"] in told


def _wait_for_end(cluster: RealCluster, job_id: str) -> dict[str, Any]:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        job = _job(cluster, job_id)
        if job["phase"] in ("JOB_PHASE_FINISHED", "JOB_PHASE_FAILED", "JOB_PHASE_CANCELLED"):
            return job
        time.sleep(LOOK_EVERY_S)
    raise TimeoutError(f"{job_id} has not ended within {PATIENCE_S} s")


def _judge(cluster: RealCluster, job: dict[str, Any], steps: int, baseline_bytes: int) -> dict[str, Any]:
    printed = cluster.cotenant("logs", job["job_id"])
    own = _OWN_PEAK.search(printed.stdout)
    if own is None:
        sys.stderr.write(f"{job['job_id']}: logs ended with {printed.returncode} {printed.stderr!r}, and printed ")
        sys.stderr.write(f"{len(printed.stdout)} characters: ...{printed.stdout[-_SHOWN:]!r}\n")
    own_bytes = int(own[1]) if own else 0
    measured_bytes = int(job.get("memory_peak_bytes", 0)) + baseline_bytes
    return {
        "reason": job["reason"]["code"],
        "was_captured": bool(job["spec"].get("graph_sha256")),
        "steps_are_right": int(job.get("steps_done", 0)) == steps,
        "own_peak_bytes": own_bytes,
        "memory_error_ratio": abs(measured_bytes - own_bytes) / own_bytes if own_bytes else None,
    }


def _job(cluster: RealCluster, job_id: str) -> dict[str, Any]:
    done = cluster.cotenant("describe", job_id, "-o", "json")
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    job: dict[str, Any] = found.get("job", found)
    return job


def _baseline_bytes(state_dir: Path) -> int:
    (kept,) = state_dir.glob("*/standin_baseline.json")
    return int(json.loads(kept.read_text())["baseline_bytes"])


if __name__ == "__main__":
    unwind_when_ended()
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default="", help=f"Runs the scripts. [default: {VARIABLE}]")
    parser.add_argument("--plain", dest="pair", action="store_const", const="plain", help="They need torch alone.")
    parser.add_argument("--transformers", dest="pair", action="store_const", const="transformers")
    parser.add_argument("--epochs", type=int, nargs=2, default=(), metavar=("FIRST", "SECOND"))
    parser.set_defaults(pair="lightning")
    given = parser.parse_args()
    print(json.dumps(main(given.python, pair=given.pair, epochs=given.epochs), indent=2))
