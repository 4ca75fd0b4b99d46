"""A gang in the keeper: its ranks begin together, and where one is lost none goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.agent import find_processes, wait_until
from tests.support.shim_bench import Bench, state_of

# Says who it is; what follows is the rank's own. Arguments would show in the command lines of all ranks alike.
HEAD = """
import os, pathlib, signal, sys, time
rank, folder = int(os.environ["RANK"]), pathlib.Path({folder!r})
(folder / f"rank-{{rank}}.up").write_text(str(os.getpid()))
print("rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
def wait_for_all():
    while len(list(folder.glob("rank-*.up"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
wait_for_all()
"""
WAITS = "time.sleep(600)"
SAVES = """
def leave(*_):
    time.sleep(0.2 * rank)
    (folder / f"rank-{rank}.saved").touch()
    os._exit(85)
signal.signal(signal.SIGTERM, leave)
(folder / f"rank-{rank}.ready").touch()
"""


def prepare(bench: Bench, source: str, ranks: int = 2, servers: int = 0, **changes: object) -> Path:
    folder = str(bench.root / "jobs")
    records = [
        {
            "rank": rank,
            "log": "out.log" if rank == 0 else f"out.rank-{rank}.log",
            "environment": {"RANK": str(rank), "WORLD_SIZE": str(ranks)},
            **({"server": rank - ranks + servers} if rank >= ranks - servers else {}),
        }
        for rank in range(ranks)
    ]
    source = HEAD.format(folder=folder) + source
    return bench.prepare(source, changes={"ranks": records, "stop_grace_ms": 20_000, **changes})


def end_of(directory: Path) -> dict[str, object]:
    wait_until((directory / "exit.json").exists, "the gang has ended")
    return dict(json.loads((directory / "exit.json").read_text()))


def wait_for(bench: Bench, *names: str) -> None:
    for name in names:
        wait_until((bench.root / "jobs" / name).exists, name)


def rank_pid(directory: Path, rank: int) -> int:
    wait_until((directory / "state.json").exists, "it has started")
    return int(json.loads((directory / "state.json").read_text())["ranks"][rank]["pid"])


def test_every_rank_has_its_variables_and_its_log(bench: Bench) -> None:
    directory = prepare(bench, "", ranks=3)
    bench.start(directory)
    record = end_of(directory)
    assert (record["return_code"], record.get("failed_rank")) == (0, None)
    logs = [(directory / name).read_text() for name in ("out.log", "out.rank-1.log", "out.rank-2.log")]
    assert logs == [f"rank {rank} of 3\n" for rank in range(3)]


@pytest.mark.parametrize("lost", [0, 1])
def test_the_end_of_one_rank_ends_the_others_and_its_code_counts(bench: Bench, lost: int) -> None:
    directory = prepare(bench, f"sys.exit(print('lost', flush=True) or 3) if rank == {lost} else {WAITS}")
    bench.start(directory)
    record = end_of(directory)
    assert (record["return_code"], record["failed_rank"], record["cause"]) == (3, lost, "")
    assert record["log_tail"] == f"rank {lost} of 2\nlost\n"
    wait_until(lambda: not find_processes(str(bench.root / "jobs")), "no rank is left alone")


def test_a_rank_that_is_killed_takes_the_others_with_it(bench: Bench) -> None:
    directory = prepare(bench, WAITS)
    bench.start(directory)
    wait_for(bench, "rank-0.up", "rank-1.up")
    os.kill(rank_pid(directory, 1), signal.SIGKILL)
    record = end_of(directory)
    assert (record["return_code"], record["failed_rank"]) == (-signal.SIGKILL, 1)


def test_a_rank_that_is_deaf_to_the_end_of_another_one_is_killed(bench: Bench) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    # The failing rank waits until the other one is deaf: on a busy machine it ended it before.
    leaves = "while not (folder / 'deaf-0').exists(): time.sleep(0.01)\n    sys.exit(4)"
    source = f"{deaf}\n(folder / f'deaf-{{rank}}').touch()\nif rank == 1:\n    {leaves}\n{WAITS}"
    directory = prepare(bench, source, stop_grace_ms=300)
    bench.start(directory)
    record = end_of(directory)
    assert (record["return_code"], record["killed"], record["failed_rank"]) == (4, True, 1)


def test_a_rank_that_has_done_its_work_waits_for_no_other(bench: Bench) -> None:
    directory = prepare(bench, "time.sleep(0.5 * rank)\nprint('done', flush=True)")
    bench.start(directory)
    record = end_of(directory)
    assert (record["return_code"], (directory / "out.rank-1.log").read_text()) == (0, "rank 1 of 2\ndone\n")


def test_a_stop_lets_every_rank_leave_with_its_part_of_a_checkpoint(bench: Bench) -> None:
    directory = prepare(bench, SAVES + WAITS)
    bench.start(directory)
    wait_for(bench, "rank-0.ready", "rank-1.ready")
    record = bench.stop(directory)
    assert (record["return_code"], record["killed"], record["cause"]) == (85, False, "stopped")
    assert sorted(path.name for path in (bench.root / "jobs").glob("*.saved")) == ["rank-0.saved", "rank-1.saved"]


def test_a_stop_counts_as_checkpointed_although_a_rank_that_handles_nothing_ended_first(bench: Bench) -> None:
    slow = SAVES.replace("0.2 * rank", "0.5")
    source = f"if rank == 0:\n    exec({slow!r})\n(folder / f'rank-{{rank}}.set').touch()\n{WAITS}"
    directory = prepare(bench, source)
    bench.start(directory)
    wait_for(bench, "rank-0.set", "rank-1.set")
    assert bench.stop(directory)["return_code"] == 85


def test_with_its_keeper_the_whole_gang_ends(bench: Bench) -> None:
    directory = prepare(bench, WAITS)
    shim = bench.start(directory)
    wait_for(bench, "rank-0.up", "rank-1.up")
    shim.kill()
    wait_until(lambda: not find_processes(str(bench.root / "jobs")), "no rank is left alone")


def test_all_ranks_stand_still_together_and_go_on_before_they_are_asked_to_end(bench: Bench) -> None:
    directory = prepare(bench, SAVES + WAITS)
    bench.start(directory)
    wait_for(bench, "rank-0.ready", "rank-1.ready")
    pids = [rank_pid(directory, rank) for rank in (0, 1)]
    until_ms = int(Path("/proc/uptime").read_text().split(".")[0]) * 1000 + 50_000
    (directory / "pause.json").write_text(json.dumps({"until_boot_ms": until_ms}))
    wait_until(lambda: [state_of(pid) for pid in pids] == ["T", "T"], "both stand still")
    assert bench.stop(directory)["return_code"] == 85


def test_those_that_wait_for_a_rank_which_ended_with_0_are_ended_and_that_is_no_success(bench: Bench) -> None:
    source = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
(folder / f"rank-{rank}.ready").touch()
if rank == 0:
    time.sleep(600)
while not (folder / "rank-0.ready").exists():
    time.sleep(0.01)
"""
    directory = prepare(bench, source, ranks_silent_ms=300)
    bench.start(directory)
    record = end_of(directory)
    assert (record["return_code"], record["cause"], record["killed"]) == (0, "ranks_silent", False)


@pytest.mark.parametrize(("is_part", "code"), [(True, 85), (False, -9)])
def test_ranks_that_wait_for_a_part_which_ended_on_another_node_are_ended(
    bench: Bench, code: int, *, is_part: bool
) -> None:
    """A job that is all here has no other parts, whatever lies in its folder."""
    directory = prepare(bench, SAVES + WAITS, ranks_silent_ms=300, is_part=is_part)
    bench.start(directory)
    wait_for(bench, "rank-0.ready", "rank-1.ready")
    (directory / "ended_parts.json").write_text(json.dumps({"parts": 1}))
    if not is_part:
        time.sleep(1.0)
        os.kill(rank_pid(directory, 1), signal.SIGKILL)
    record = end_of(directory)
    assert (record["return_code"], record["cause"]) == (code, "ranks_silent" if is_part else "")


def test_servers_go_on_until_the_ranks_of_all_nodes_are_done(bench: Bench) -> None:
    source = "if rank == 1:\n    time.sleep(600)\n"
    directory = prepare(bench, source, servers=1, is_part=True, other_parts=1)
    bench.start(directory)
    wait_until(lambda: (directory / "ranks_done.json").exists(), what="the agent is told that the ranks are done")
    # Some rounds of its keeper later.
    time.sleep(1.0)
    assert not (directory / "exit.json").exists()
    (directory / "ended_parts.json").write_text(json.dumps({"parts": 1}))
    record = end_of(directory)
    assert (record["return_code"], record["cause"], "failed_rank" in record) == (0, "", False)
