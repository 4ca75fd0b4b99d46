"""The helper as scripts use it: in processes of their own, inside and outside a cluster."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant import job
from cotenant_agent.checkpointing.checkpoints import newest_resumable, read_checkpoint
from cotenant_agent.progress_reading.progress import bind_anywhere


def run_script(tmp_path: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script that imports the helper as a single file copied next to it."""
    shutil.copy(job.__file__, tmp_path / "job.py")
    (tmp_path / "script.py").write_text("import job\nfrom pathlib import Path\n" + source)
    variables = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(
        [sys.executable, "-S", str(tmp_path / "script.py")],
        env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def cluster(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "COTENANT_JOB_ID": "job-1",
        "COTENANT_FENCE": "4",
        "COTENANT_PROGRESS": str(tmp_path / "progress.sock"),
        "COTENANT_CHECKPOINT_DIR": str(tmp_path / "checkpoints" / "4"),
        **more,
    }


@contextmanager
def listening(folder: Path) -> Iterator[socket.socket]:
    """Where reports arrive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        bind_anywhere(listener, folder / "progress.sock")
        yield listener


def test_outside_a_cluster_nothing_happens(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        "job.report(1, loss=0.5)\n"
        "assert not job.should_stop() and not job.should_checkpoint()\n"
        "assert job.resume_directory() is None and job.resume_step() == 0\n"
        "assert (job.global_batch(64), job.sub_batch(64), job.accumulation_steps()) == (64, 64, 1)\n"
        "job.checkpointed('nowhere', 1)\njob.finish()\njob.out_of_memory()\nassert not job.limit_gpu_memory()\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != "") == ["job.py", "script.py"]


def test_the_loop_of_the_documentation_checkpoints_and_goes_on(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "training_scripts.md").read_text()
    loop = page.split("from cotenant import job\n", 1)[1].split("```", 1)[0]
    run_to = (
        "from types import SimpleNamespace as Thing\n"
        "class Loss(float):\n    backward = __mul__ = lambda self, weight=1: self\n"
        "x, y, model, optimizer = [1, 2], [3, 4], list, Thing(step=lambda: None)\n"
        "loss_function, loss = lambda found, wanted: Loss(0.5), 0.5\n"
        "save = lambda path: path.write_text(path.name)\n"
        "load = lambda path: print('loaded', path.read_text())\n"
    )
    wishes = cluster(tmp_path, COTENANT_CHECKPOINT_INTERVAL_MS="1")
    first = run_script(tmp_path, f"import time\n{run_to}steps_total = 3\ntime.sleep(0.01)\n{loop}", **wishes)
    assert (first.returncode, first.stdout, first.stderr) == (0, "", "")
    written = Path(wishes["COTENANT_CHECKPOINT_DIR"])
    step = json.loads((written / job.MANIFEST_NAME).read_text())["step"]
    second = run_script(
        tmp_path,
        f"{run_to}steps_total = 3\n{loop}print('steps left', steps_total - job.resume_step())",
        **{**wishes, "COTENANT_RESUME": str(written), "COTENANT_CHECKPOINT_INTERVAL_MS": "0"},
    )
    assert second.stdout == f"loaded step-{step}.pt\nsteps left {3 - step}\n", second.stderr


def test_the_last_step_is_stored_although_every_datagram_is_lost(tmp_path: Path) -> None:
    done = run_script(tmp_path, "for step in range(1, 51):\n    job.report(step, epoch=2)\n", **cluster(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    stored = json.loads((tmp_path / "progress.json").read_text())
    assert (stored["step"], stored["epoch"]) == (50, 2)


def test_reports_arrive_as_datagrams_and_never_more_than_twenty_a_second(tmp_path: Path) -> None:
    with listening(tmp_path) as listener:
        run_script(tmp_path, "for step in range(1, 2001):\n    job.report(step, loss=1 / step)\n", **cluster(tmp_path))
        listener.setblocking(False)
        first = json.loads(listener.recv(2048))
        assert (first["step"], first["loss"]) == (1, 1.0)


def test_a_full_socket_never_blocks_a_script(tmp_path: Path) -> None:
    with listening(tmp_path):
        source = "for step in range(200):\n    job._reporter()._send(b'x')\nprint('on')\n"
        assert run_script(tmp_path, source, **cluster(tmp_path)).stdout == "on\n"


def test_signals_only_set_flags_and_leaving_means_85(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        "import os, signal\nassert not job.should_checkpoint()\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nassert job.should_checkpoint() and not job.should_stop()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\nassert job.should_stop()\njob.report(3)\n"
        "path = job.checkpoint_directory() / 'step-3.pt'\npath.write_text('w')\njob.checkpointed(path, 3)\n"
        "assert not job.should_checkpoint()\njob.leave()\n",
        **cluster(tmp_path),
    )
    assert (done.returncode, done.stderr) == (85, "")
    manifest = json.loads((tmp_path / "checkpoints" / "4" / "cotenant_checkpoint.json").read_text())
    assert manifest["step"] == 3
    assert manifest["fence"] == 4
    assert manifest["files"] == ["step-3.pt"]
    assert manifest["bytes"] == 1
    assert manifest["sha256"] == hashlib.sha256(b"w").hexdigest()
    assert manifest["duration_ms"] >= 0


SHARD = (
    "step = {step}\npath = job.checkpoint_directory() / f'step-{{step}}.rank-{{job.rank()}}.pt'\n"
    "path.write_text(f'{{step}} of {{job.rank()}}')\njob.report(step)\njob.checkpointed(path, step, is_shard=True)\n"
)


def gang(tmp_path: Path, rank: int) -> dict[str, str]:
    folder = str(tmp_path / "job-1" / "4")
    return cluster(tmp_path, RANK=str(rank), WORLD_SIZE="2", COTENANT_CHECKPOINT_DIR=folder)


def declare_shard(tmp_path: Path, rank: int, step: int) -> None:
    wishes = gang(tmp_path, rank)
    done = run_script(tmp_path, SHARD.format(step=step), **wishes)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_sharded_checkpoint_counts_once_every_rank_has_declared_its_part(tmp_path: Path) -> None:
    folder = tmp_path / "job-1" / "4"
    folder.mkdir(parents=True)
    declare_shard(tmp_path, 0, 5)
    assert read_checkpoint(folder) is None
    declare_shard(tmp_path, 1, 5)
    found = newest_resumable([folder])
    assert found is not None
    assert (found.step, found.world_size) == (5, 2)
    # The next one is not whole yet: the older one stays, with all of its files.
    declare_shard(tmp_path, 1, 6)
    assert newest_resumable([folder]) == found
    declare_shard(tmp_path, 0, 6)
    newest = newest_resumable([folder])
    assert newest is not None
    assert newest.step == 6
    assert sorted(path.name for path in folder.glob("*.pt")) == ["step-6.rank-0.pt", "step-6.rank-1.pt"]
    manifest = json.loads((folder / job.MANIFEST_NAME).read_text())
    assert [(shard["rank"], shard["files"]) for shard in manifest["shards"]] == [
        (0, ["step-6.rank-0.pt"]),
        (1, ["step-6.rank-1.pt"]),
    ]


def test_ranks_that_declare_different_steps_complete_no_checkpoint(tmp_path: Path) -> None:
    declare_shard(tmp_path, 0, 5)
    declare_shard(tmp_path, 1, 6)
    assert read_checkpoint(tmp_path / "job-1" / "4") is None


def test_of_a_gang_only_rank_0_reports_and_declares_what_it_wrote_alone(tmp_path: Path) -> None:
    source = "job.report(9)\njob.checkpointed('nowhere', 9)\nprint(job.rank(), job.world_size())\njob.leave()\n"
    done = run_script(tmp_path, source, **gang(tmp_path, 1))
    assert (done.returncode, done.stdout, done.stderr) == (85, "1 2\n", "")
    assert not (tmp_path / "progress.json").exists()
    source = (
        "path = job.checkpoint_directory() / 'a.pt'\npath.write_text('w')\njob.report(9)\njob.checkpointed(path, 9)\n"
    )
    run_script(tmp_path, source, **gang(tmp_path, 0))
    found = newest_resumable([tmp_path / "job-1" / "4"])
    assert found is not None
    assert (found.step, found.world_size) == (9, 2)
    assert json.loads((tmp_path / "progress.json").read_text())["step"] == 9


def test_a_variable_of_ones_own_called_rank_makes_no_gang(tmp_path: Path) -> None:
    run_script(tmp_path, "job.report(3)\nprint(job.rank())\n", **cluster(tmp_path, RANK="seven"))
    assert json.loads((tmp_path / "progress.json").read_text())["step"] == 3


def test_any_rank_can_say_that_its_device_is_full(tmp_path: Path) -> None:
    with listening(tmp_path) as listener:
        run_script(tmp_path, "job.report(3)\njob.out_of_memory()\n", **cluster(tmp_path, RANK="1", WORLD_SIZE="2"))
        listener.setblocking(False)
        assert json.loads(listener.recv(2048)) == {"failure": "gpu_oom"}


def test_a_script_that_never_asks_keeps_the_default_action_of_signals(tmp_path: Path) -> None:
    source = "import os, signal\njob.report(1)\nos.kill(os.getpid(), signal.SIGTERM)\n"
    assert run_script(tmp_path, source, **cluster(tmp_path)).returncode == -signal.SIGTERM


def test_leaving_renews_only_a_manifest_that_holds_the_last_step(tmp_path: Path) -> None:
    source = (
        "import os, sys\npath = job.checkpoint_directory() / 'a'\npath.write_text('w')\njob.report(3)\n"
        "job.checkpointed(path, 3)\nmanifest = job.checkpoint_directory() / job.MANIFEST_NAME\n"
        "os.utime(manifest, (1, 1))\njob.report({step})\njob.leave()\n"
    )
    manifest = tmp_path / "checkpoints" / "4" / "cotenant_checkpoint.json"
    run_script(tmp_path, source.format(step=3), **cluster(tmp_path))
    assert manifest.stat().st_mtime > 1
    run_script(tmp_path, source.format(step=4), **cluster(tmp_path))
    assert manifest.stat().st_mtime == 1


def test_a_newer_checkpoint_replaces_the_files_of_the_older_one(tmp_path: Path) -> None:
    source = (
        "for step in (1, 2):\n    path = job.checkpoint_directory() / f'step-{step}'\n    path.mkdir()\n"
        "    (path / 'model').write_text('m'); (path / 'optimizer').write_text('o')\n    job.checkpointed(path, step)\n"
    )
    assert run_script(tmp_path, source, **cluster(tmp_path)).stderr == ""
    root = tmp_path / "checkpoints" / "4"
    assert [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()] == [
        "cotenant_checkpoint.json",
        "step-2/model",
        "step-2/optimizer",
    ]


def test_a_checkpoint_elsewhere_is_refused(tmp_path: Path) -> None:
    done = run_script(tmp_path, "Path('x').write_text('x')\njob.checkpointed('x', 1)\n", **cluster(tmp_path))
    assert "COTENANT_CHECKPOINT_DIR" in done.stderr


def test_a_checkpoint_is_due_after_the_clusters_interval(tmp_path: Path) -> None:
    source = "import time\nassert not job.should_checkpoint()\ntime.sleep(0.06)\nassert job.should_checkpoint()\n"
    environment = cluster(tmp_path, COTENANT_CHECKPOINT_INTERVAL_MS="50")
    assert run_script(tmp_path, source, **environment).stderr == ""


def test_a_very_long_path_to_the_socket_works(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    with listening(directory) as listener:
        run_script(tmp_path, "job.report(9)\n", **cluster(tmp_path, COTENANT_PROGRESS=str(directory / "progress.sock")))
        listener.setblocking(False)
        assert json.loads(listener.recv(2048))["step"] == 9


@pytest.mark.parametrize("batch", [list(range(10)), "abcdefghij"])
def test_sub_batches_cover_the_batch_in_order_with_weights_that_sum_to_one(
    batch: list[int] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTENANT_SUB_BATCH", "4")
    parts = list(job.sub_batches(batch))
    assert [item for part, _ in parts for item in part] == list(batch)
    assert [weight for _, weight in parts] == [0.4, 0.4, 0.2]


def test_sub_batches_keep_the_shape_of_nested_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_SUB_BATCH", "2")
    batch = {"x": [[1], [2], [3]], "pair": ([4, 5, 6], [7, 8, 9])}
    assert [part for part, _ in job.sub_batches(batch)] == [
        {"x": [[1], [2]], "pair": ([4, 5], [7, 8])},
        {"x": [[3]], "pair": ([6], [9])},
    ]
    with pytest.raises(ValueError, match="empty"):
        list(job.sub_batches([]))


def test_negative_counters_are_refused() -> None:
    with pytest.raises(ValueError, match="count from 0"):
        job.report(-1)
    with pytest.raises(ValueError, match="count from 0"):
        job.report(1, total=-1)


def test_the_helper_imports_nothing_but_the_standard_library(tmp_path: Path) -> None:
    assert run_script(tmp_path, "print(job.EXIT_CHECKPOINTED)").stdout == "85\n"


def test_a_total_goes_out_with_every_report_from_where_a_script_says_it(tmp_path: Path) -> None:
    run_script(tmp_path, "job.report(1)\njob.report(2, total=40)\njob.report(3)\n", **cluster(tmp_path))
    stored = json.loads((tmp_path / "progress.json").read_text())
    assert (stored["step"], stored["total"]) == (3, 40)
    run_script(tmp_path, "job.report(1)\n", **cluster(tmp_path))
    assert "total" not in json.loads((tmp_path / "progress.json").read_text())
