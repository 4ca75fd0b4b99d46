"""The helper for training scripts: progress out, stop and checkpoint requests in.

One file, standard library only: it may be copied next to a script and used alone, as in examples/training/train.py.
Outside a cotenant cluster every function is harmless: nothing is sent, nothing asks to stop, and the batch sizes are
the caller's own defaults. Steps are counted over all attempts. Signals (SIGTERM stop, SIGUSR1 checkpoint and go on)
only set flags, and only a script that asks `should_stop` or `should_checkpoint` catches them. Ranks of a gang are
answered at different instants and must agree: all-reduce the answers.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, SupportsFloat, TypeAlias

EXIT_CHECKPOINTED = 85
MANIFEST_NAME = "cotenant_checkpoint.json"
PROGRESS_FILE_NAME = "progress.json"
_SHARD_NAME = "cotenant_shard.{}.json"
_OWN_NAMES = ("cotenant_checkpoint", "cotenant_shard")

# An array or tensor; a tuple, mapping or list of them (columns of equal length); or a list of samples.
Batch: TypeAlias = Any
FilePath: TypeAlias = str | os.PathLike[str]

_DATAGRAM_INTERVAL_NS = 50_000_000
_PROGRESS_FILE_INTERVAL_NS = 2_000_000_000
_UNIX_PATH_LIMIT = 107
_GO_BYTES = 32_768
_MEMORY_INTERVAL_S = 0.05


class _Flags:
    """What the signals asked for, and since when a checkpoint is due."""

    def __init__(self) -> None:
        self.installed = self.stop = self.checkpoint = False
        self.declared_step = -1
        self.asked_at_ns = self.checkpointed_at_ns = _now_ns()

    def install(self) -> None:
        """Catch the two signals once; Python allows it in the main thread only."""
        if not self.installed and inside_cluster() and threading.current_thread() is threading.main_thread():
            self.installed = True
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.stop = self.stop or number == signal.SIGTERM
        self.checkpoint = self.checkpoint or number == signal.SIGUSR1


class _Reporter:
    """Sends progress without ever blocking, and keeps the newest in a small file as well."""

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path
        self._process = os.getpid()
        self._socket: socket.socket | None = None
        self._directory: int | None = None
        self._sent_at_ns = self._stored_at_ns = 0
        self._latest = self._stored = dict[str, object]()
        self._loss: float | None = None
        self.step = -1
        atexit.register(self.store)

    def report(self, *, step: int, total: int, epoch: int, loss: SupportsFloat | None, samples: int) -> None:
        """Remember the counters; send them at most twenty times a second."""
        now_ns = _now_ns()
        due = now_ns - self._sent_at_ns >= _DATAGRAM_INTERVAL_NS
        # Reading a loss makes a GPU wait for its queue, hence only when it is sent.
        if due and loss is not None:
            number = float(loss)
            self._loss = number if math.isfinite(number) else None
        self.step = step
        counters = {"step": step, "epoch": epoch, "loss": self._loss, "samples": samples, "at_ns": now_ns}
        self._latest = {**self._latest, **counters, **({"total": total} if total else {})}
        if due:
            self._sent_at_ns = now_ns
            self._send(json.dumps(self._latest).encode())
        if now_ns - self._stored_at_ns >= _PROGRESS_FILE_INTERVAL_NS:
            self.store()

    def mark(self, key: str, value: object) -> None:
        """Attach a fact that must not be lost and store it at once."""
        self._latest = {**self._latest, key: value}
        self._send(json.dumps(self._latest).encode())
        self.store()

    def store(self) -> None:
        """Replace the progress file; a full disk costs the file, never the training. It is rank 0's."""
        if os.getpid() != self._process or rank() > 0 or self._latest == self._stored:
            return
        self._stored_at_ns = _now_ns()
        with contextlib.suppress(OSError):
            _replace(self._socket_path.parent / PROGRESS_FILE_NAME, json.dumps(self._latest).encode(), durable=False)
            self._stored = self._latest

    def tell_memory(self, read_bytes: Callable[[], int]) -> None:
        while True:
            with contextlib.suppress(Exception):
                self._send(json.dumps({"allocated": int(read_bytes()), "at_ns": _now_ns()}).encode())
            time.sleep(_MEMORY_INTERVAL_S)

    def _send(self, datagram: bytes) -> None:
        # Full buffer, agent restarting, socket not there yet: dropped, the next report carries everything anew.
        with contextlib.suppress(OSError):
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._socket.sendto(datagram, self._address())

    def _address(self) -> str:
        path = str(self._socket_path)
        if len(os.fsencode(path)) <= _UNIX_PATH_LIMIT:
            return path
        # A socket address holds 107 bytes; a descriptor of the directory makes any path short.
        if self._directory is None:
            self._directory = os.open(self._socket_path.parent, os.O_PATH | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._directory}/{self._socket_path.name}"


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


_flags = _Flags()
_reporters: dict[str, _Reporter] = {}


def inside_cluster() -> bool:
    """Whether a cotenant agent started this process."""
    return "COTENANT_JOB_ID" in os.environ


def wait_for_go() -> None:
    """In an attempt that was started early, wait until the job's attempt before it has ended; else return at once.

    Call it before the device or a checkpoint is needed: imports, data and the network on the CPU then cost no time.
    """
    barrier = os.environ.pop("COTENANT_GO", "")
    if not barrier:
        return
    with socket.socket(fileno=int(barrier)) as shim:
        shim.send(b"prepared")
        words = shim.recv(_GO_BYTES)
    if not words:  # The other end is closed: this attempt will not begin.
        os._exit(1)
    os.environ.update(json.loads(words)["environment"])
    _flags.asked_at_ns = _flags.checkpointed_at_ns = _now_ns()


def report(step: int, *, total: int = 0, epoch: int = 0, loss: SupportsFloat | None = None, samples: int = 0) -> None:
    """Report how far the training is. Costs microseconds, never blocks, may be called after every step by every rank.

    Args:
        step: optimizer steps done so far over all attempts, 0 or more (else ValueError, as for all counts here).
        total: optimizer steps of the whole job, where its owner states none; 0 = not known, or as said before.
        epoch: training epoch.
        loss: newest loss; a number or a detached scalar tensor, read only when it is sent.
        samples: training samples seen so far.
    """
    if min(step, total, epoch, samples) < 0:
        raise ValueError(f"step, total, epoch and samples count from 0; got {step}, {total}, {epoch}, {samples}")
    if (reporter := _reporter()) and rank() == 0:
        reporter.report(step=step, total=total, epoch=epoch, loss=loss, samples=samples)


def should_stop() -> bool:
    """Whether the job was asked to write a checkpoint and leave (see `leave`)."""
    _flags.install()
    _flags.asked_at_ns = _now_ns()
    return _flags.stop


def should_checkpoint() -> bool:
    """Whether a checkpoint is due: one was requested, or the interval of the cluster has passed."""
    _flags.install()
    now_ns = _flags.asked_at_ns = _now_ns()
    interval_ms = _integer("COTENANT_CHECKPOINT_INTERVAL_MS") if inside_cluster() else 0
    return _flags.checkpoint or 0 < interval_ms * 1_000_000 <= now_ns - _flags.checkpointed_at_ns


def sub_batches(batch: Batch) -> Iterator[tuple[Batch, float]]:
    """Cut a batch into the sub-batches that this job was given, for gradient accumulation.

    Multiply each part's mean loss by its weight before `backward`: the accumulated gradient is then that of the whole
    batch, also when the last part is shorter. BatchNorm sees the parts, not the batch, and therefore differs.

    Yields:
        (part, weight): the part is built like the batch (else ValueError: it is empty); weight = its share of samples.
    """
    total = _length(batch)
    if total == 0:
        raise ValueError("an empty batch has no sub-batches")
    size = sub_batch(total)
    for start in range(0, total, size):
        stop = min(start + size, total)
        yield _part(batch, start, stop), (stop - start) / total


def checkpointed(path: FilePath, step: int, *, duration_ms: int | None = None, is_shard: bool = False) -> None:
    """Declare that a complete checkpoint lies at `path`: it is made durable and then named in the manifest.

    Only what a manifest names is ever resumed. Give each checkpoint its own file name (the step in it): then a crash
    before the new manifest leaves the older pair intact. Files that only the previous manifest names are deleted.

    Args:
        path: file, or directory whose files all belong to it, inside `checkpoint_directory` (else ValueError).
        step: optimizer steps contained in it, over all attempts.
        duration_ms: how long writing took; by default the time since the last `should_stop` or `should_checkpoint`.
        is_shard: every rank declares files of its own, and the manifest is written when all have for the same step.
            Otherwise only what rank 0 declares counts.
    """
    if not inside_cluster():
        return
    elapsed_ms = (_now_ns() - _flags.asked_at_ns) // 1_000_000 if duration_ms is None else duration_ms
    if is_shard or rank() == 0:
        root = checkpoint_directory()
        files = _files_of(Path(path), root)
        digest, size_bytes = _make_durable(root, files)
        manifest = {"step": step, "files": files, "bytes": size_bytes, "sha256": digest, "duration_ms": elapsed_ms}
        manifest |= {"job_id": os.environ["COTENANT_JOB_ID"], "fence": _integer("COTENANT_FENCE")}
        manifest |= {"incarnation_id": os.environ.get("COTENANT_INCARNATION_ID"), "world_size": world_size()}
        if not is_shard or _add_shards(root, manifest):
            _seal(root, manifest)
    _flags.checkpoint, _flags.declared_step, _flags.checkpointed_at_ns = False, step, _now_ns()


def leave() -> NoReturn:
    """End the process with exit code 85: the work is in a checkpoint. Skips the interpreter's slow teardown."""
    _renew_manifest()
    finish()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(EXIT_CHECKPOINTED)


def finish() -> None:
    """Store the newest progress now. Also done at a normal exit; only `os._exit` needs it."""
    for reporter in _reporters.values():
        reporter.store()


def out_of_memory() -> None:
    """Report that the device's memory was not enough, for scripts that handle the framework's error themselves."""
    if reporter := _reporter():
        reporter.mark("failure", "gpu_oom")


def limit_gpu_memory() -> bool:
    """Keep PyTorch's allocator in this process, and nothing else, below the job's share; True = a limit was set."""
    fraction, torch = os.environ.get("COTENANT_GPU_MEMORY_FRACTION", ""), sys.modules.get("torch")
    if not fraction or torch is None or not torch.cuda.is_available():
        return False
    torch.cuda.set_per_process_memory_fraction(float(fraction))
    return True


def watch_memory(read_bytes: Callable[[], int]) -> None:
    """Tell from a thread what is allocated on the device, e.g. by `torch.cuda.memory_allocated`; rank 0's counts."""
    if (reporter := _reporter()) and rank() == 0:
        threading.Thread(target=reporter.tell_memory, args=(read_bytes,), daemon=True).start()


def resume_directory() -> Path | None:
    """Directory whose checkpoint this attempt continues from (its manifest was verified); None = start afresh."""
    wait_for_go()
    path = os.environ.get("COTENANT_RESUME", "")
    return Path(path) if path else None


def resume_step() -> int:
    """Optimizer steps in the checkpoint that is resumed; 0 = start afresh."""
    directory = resume_directory()
    return 0 if directory is None else int(_read(directory / MANIFEST_NAME)["step"])


def checkpoint_directory(default: FilePath = "checkpoints") -> Path:
    """Where this attempt writes its checkpoints; `default` outside the cluster."""
    directory = Path(os.environ.get("COTENANT_CHECKPOINT_DIR", "") or default)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def global_batch(default: int) -> int:
    """Samples of one optimizer step over all ranks."""
    return _integer("COTENANT_GLOBAL_BATCH") or default


def sub_batch(default: int) -> int:
    """Samples that go through the model at once on one rank."""
    return max(1, _integer("COTENANT_SUB_BATCH") or default)


def accumulation_steps() -> int:
    """Sub-batches per optimizer step on one rank; 1 outside the cluster."""
    return max(1, _integer("COTENANT_ACCUMULATION_STEPS"))


def rank() -> int:
    """Which process of a gang this is; 0 in a job of one process, whatever a variable RANK means there."""
    return _integer("RANK") or _integer("COTENANT_RANK") if world_size() > 1 else 0


def world_size() -> int:
    """Processes of the gang over all nodes; 1 in a job of one process."""
    return _integer("WORLD_SIZE") or max(1, _integer("COTENANT_WORLD_SIZE"))


def _integer(name: str) -> int:
    return int(os.environ.get(name) or 0)


def _reporter() -> _Reporter | None:
    wait_for_go()
    path = os.environ.get("COTENANT_PROGRESS", "")
    if path and path not in _reporters:
        _reporters[path] = _Reporter(Path(path))
    return _reporters.get(path)


def _columns(batch: Batch) -> Sequence[Batch] | None:
    """The arrays of a batch that consists of several, None when the batch is itself a sequence of samples."""
    if isinstance(batch, Mapping):
        return list(batch.values())
    # A tuple holds columns; a list holds samples, unless it is a loader's list of arrays.
    columns = isinstance(batch, list) and any(hasattr(item, "shape") for item in batch)
    return batch if columns or (isinstance(batch, tuple) and batch) else None


def _length(batch: Batch) -> int:
    columns = _columns(batch)
    return len(batch) if columns is None else max(map(_length, columns), default=0)


def _part(batch: Batch, start: int, stop: int) -> Batch:
    if isinstance(batch, Mapping):
        return {key: _part(column, start, stop) for key, column in batch.items()}
    columns = _columns(batch)
    if columns is None:
        return batch[start:stop]
    parts = [_part(column, start, stop) for column in columns]
    return tuple(parts) if isinstance(batch, tuple) else parts


def _files_of(path: Path, root: Path) -> list[str]:
    """Names of the checkpoint's files relative to its root, sorted."""
    base = root.resolve()
    found = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    resolved = [item.resolve() for item in found if not item.name.startswith(_OWN_NAMES)]
    if not resolved or not all(item.is_relative_to(base) for item in resolved):
        raise ValueError(f"{path} must hold the checkpoint's files and lie inside {base} (COTENANT_CHECKPOINT_DIR)")
    return sorted(str(item.relative_to(base)) for item in resolved)


def _make_durable(root: Path, files: Sequence[str]) -> tuple[str, int]:
    """Flush every file to disk; returns (SHA-256 of the contents in the order of the names, bytes)."""
    digest, size_bytes = hashlib.sha256(), 0
    for name in files:
        with (root / name).open("rb") as file:
            os.fsync(file.fileno())
            while block := file.read(1 << 20):
                digest.update(block)
                size_bytes += len(block)
        _flush((root / name).parent)
    return digest.hexdigest(), size_bytes


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes()))


def _add_shards(root: Path, manifest: dict[str, Any]) -> bool:
    """Leave this rank's shard for the others and gather all of them; False = another rank is not so far yet."""
    shard = {"rank": rank(), **{name: manifest[name] for name in ("step", "files", "bytes", "sha256")}}
    _replace(root / _SHARD_NAME.format(rank()), json.dumps(shard).encode(), durable=True)
    found = [root / _SHARD_NAME.format(other) for other in _ranks_here()]
    shards = [one for one in map(_read, filter(Path.exists, found)) if one["step"] == shard["step"]]
    manifest |= {"shards": shards, "bytes": sum(one["bytes"] for one in shards)}
    manifest["files"] = sorted(name for one in shards for name in one["files"])
    manifest["sha256"] = hashlib.sha256("".join(one["sha256"] for one in shards).encode()).hexdigest()
    return len(shards) == len(found)


def _ranks_here() -> Sequence[int]:
    """The ranks that write to this folder: where each node has a folder of its own those of this node."""
    told, first = os.environ.get("COTENANT_CHECKPOINT_PART", ""), rank() - _integer("LOCAL_RANK")
    named = [int(one) for one in told.split(",")] if "," in told else range(first, first + _integer("LOCAL_WORLD_SIZE"))
    return named if told else range(world_size())


def _seal(root: Path, manifest: dict[str, Any]) -> None:
    path = root / MANIFEST_NAME
    previous = _read(path) if path.exists() else {"files": []}
    before = previous.pop("previous", {"files": []})
    obsolete = {*previous["files"], *before["files"]} - set(manifest["files"])
    if "shards" in manifest and len(_ranks_here()) < world_size():
        # Ranks of other nodes may not have declared this step yet: then all have the one before.
        manifest["previous"] = before if previous.get("step") == manifest["step"] else previous
        obsolete -= set(manifest["previous"]["files"])
    _replace(path, json.dumps(manifest).encode(), durable=True)
    for name in obsolete:
        with contextlib.suppress(OSError):
            (root / name).unlink()
    if reporter := _reporter():
        reporter.mark("checkpoint_step", manifest["step"])


def _renew_manifest() -> None:
    """Make the manifest newer than the stop when it already holds the last step: only a newer one is accepted."""
    path = checkpoint_directory() / MANIFEST_NAME
    reporter = _reporter()
    if reporter is None or rank() > 0 or not path.exists():
        return
    manifest = _read(path)
    if manifest["step"] == reporter.step >= _flags.declared_step:
        _replace(path, json.dumps(manifest).encode(), durable=True)


def _replace(path: Path, content: bytes, *, durable: bool) -> None:
    temporary = path.with_name(f".{path.name}.{rank()}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        _flush(path.parent)


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
