"""Programs that are started early: what they do before the word to begin, and what they are afterwards."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant_agent.attempts.early_start import check_preparable, early_argv, words_to_begin
from cotenant_agent.attempts.launch_plan import LaunchPlan
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.keeper import prepared_program
from cotenant_agent.ranks.rank_plan import RankPlan
from cotenant_agent.records import AttemptKey, GangPart, LaunchRequest
from tests.support.agent import wait_until
from tests.support.cases import for_each
from tests.support.shim_bench import Bench, running_shims

REPOSITORY = Path(__file__).parents[3]
RUNNER = str(prepared_program.__file__)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with running_shims(tmp_path) as found:
        yield found


class Early:
    """One program under a shim, which waits for the word to begin."""

    def __init__(self, bench: Bench, source: str, *, mode: str = "program", arguments: tuple[str, ...] = ()) -> None:
        self.script = bench.root / "train.py"
        self.script.write_text(source)
        (bench.root / "slow_library.py").write_text("print('library', flush=True)\nVALUE = 1\n")
        argv = [sys.executable, "-S", RUNNER, mode, str(self.script), *arguments]
        environment = {"MARK": "kept", "PYTHONPATH": str(REPOSITORY), "COTENANT_JOB_ID": "job"}
        changes = {"argv": argv, "is_early": True, "environment": environment}
        self.directory = bench.prepare("", changes=changes)
        self.shim = bench.start(self.directory)

    @property
    def log(self) -> str:
        return (self.directory / "out.log").read_text() if (self.directory / "out.log").exists() else ""

    def wait_until_prepared(self, log: str = "") -> None:
        """What it has said by then may be copied a moment later."""
        wait_until((self.directory / "prepared.json").exists, "it is prepared")
        wait_until(lambda: self.log == log, f"its log says {log!r}")

    def let_begin(self, **words: object) -> None:
        (self.directory / "go.tmp").write_text(json.dumps({"environment": {}, **words}))
        (self.directory / "go.tmp").replace(self.directory / "go.json")

    def end(self) -> dict[str, object]:
        assert self.shim.wait(90) == 0
        return dict(json.loads((self.directory / "exit.json").read_text()))


def test_an_unchanged_script_imports_early_and_does_nothing_else_before_it_may_begin(bench: Bench) -> None:
    early = Early(
        bench,
        '"""Trains."""\nimport os, sys\nimport slow_library\nLIMIT = 3\ndef step(): pass\n'
        "os.environ['SET'] = 'x'\nimport json\nprint('step', sys.argv, __name__, __file__, os.environ.get('RESUME'))\n",
        arguments=("--lr", "1"),
    )
    early.wait_until_prepared("library\n")
    early.let_begin(environment={"RESUME": "there"})
    assert early.end()["return_code"] == 0
    assert early.log == f"library\nstep [{str(early.script)!r}, '--lr', '1'] __main__ {early.script} there\n"


@pytest.mark.parametrize(("line", "log"), [("", "torch\ncompiler\n"), ("os.environ['A'] = '1'\n", "torch\n")])
def test_what_the_first_optimizer_would_import_is_there_unless_the_script_sets_variables_before(
    bench: Bench, line: str, log: str
) -> None:
    (bench.root / "torch").mkdir()
    (bench.root / "torch" / "__init__.py").write_text("print('torch', flush=True)\n")
    (bench.root / "torch" / "_dynamo.py").write_text("print('compiler', flush=True)\n")
    early = Early(bench, f"import os\nimport torch\n{line}")
    early.wait_until_prepared(log)
    early.let_begin()
    early.end()
    assert early.log == log


def test_processes_that_a_script_spawns_find_its_functions(bench: Bench) -> None:
    early = Early(
        bench,
        "import multiprocessing\nimport pickle\ndef doubled(value):\n    return 2 * value\n"
        "class State: pass\nif __name__ == '__main__':\n    pickle.loads(pickle.dumps(State()))\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(doubled, [21]))\n",
    )
    early.wait_until_prepared()
    early.let_begin()
    assert early.end()["return_code"] == 0
    assert early.log == "[42]\n"


def test_a_module_is_run_as_python_runs_it(bench: Bench) -> None:
    package = bench.root / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("print('part', flush=True)\nVALUE = 3\n")
    (package / "__main__.py").write_text(
        "import sys\nfrom .part import VALUE\nprint(VALUE, sys.argv[1:], __spec__.name)\n"
    )
    argv = [sys.executable, "-S", RUNNER, "program", "-m", "package", "--lr", "1"]
    changes = {"argv": argv, "is_early": True, "environment": {}}
    directory = bench.prepare("", changes=changes)
    shim = bench.start(directory)
    wait_until((directory / "prepared.json").exists, "it is prepared")
    wait_until(lambda: (directory / "out.log").read_text() == "part\n", "what it imports has spoken")
    (directory / "go.json").write_text(json.dumps({"environment": {}}))
    assert shim.wait(90) == 0
    assert (directory / "out.log").read_text() == "part\n3 ['--lr', '1'] package.__main__\n"


def test_arguments_may_change_until_it_begins(bench: Bench) -> None:
    early = Early(bench, "import sys\nprint(sys.argv[1:])\n", mode="imports", arguments=("--resume", ""))
    early.wait_until_prepared()
    early.let_begin(argv=["--resume", "/there"])
    early.end()
    assert early.log == "['--resume', '/there']\n"


def test_a_script_that_waits_itself_has_built_its_model_by_then(bench: Bench) -> None:
    early = Early(
        bench,
        "import os\nfrom cotenant import job\nprint('built', flush=True)\njob.wait_for_go()\n"
        "print(os.environ['COTENANT_RESUME'], 'COTENANT_GO' in os.environ)\njob.wait_for_go()\n",
    )
    early.wait_until_prepared("built\n")
    early.let_begin(environment={"COTENANT_RESUME": "there"})
    assert early.end()["return_code"] == 0
    assert early.log == "built\nthere False\n"


def test_a_script_that_passes_its_waiting_by_makes_no_step_all_the_same(bench: Bench) -> None:
    early = Early(
        bench,
        "from cotenant import job\nif not job.inside_cluster():\n    job.wait_for_go()\n"
        "print(job.resume_directory(), flush=True)\n",
    )
    early.wait_until_prepared()
    early.let_begin()
    early.end()
    assert early.log == "None\n"


def test_errors_and_exit_codes_of_a_script_are_its_own(bench: Bench) -> None:
    early = Early(bench, "import missing_module\n")
    early.wait_until_prepared()
    early.let_begin()
    assert early.end()["return_code"] == 1
    assert early.log.startswith("Traceback")
    assert "prepared_program" not in early.log
    assert "No module named 'missing_module'" in early.log


@pytest.mark.parametrize("how", ["killed", "stopped", "its shim is killed", "its lease ends"])
def test_whatever_ends_it_before_it_may_begin_leaves_nothing_and_no_step(bench: Bench, how: str) -> None:
    early = Early(bench, "import os\nprint('step', flush=True)\n")
    early.wait_until_prepared()
    pid = json.loads((early.directory / "state.json").read_text())["job_pid"]
    if how == "killed":
        os.kill(pid, signal.SIGKILL)
    elif how == "stopped":
        (early.directory / "stop.json").write_text(json.dumps({"cause": "not_needed", "grace_ms": 1}))
    elif how == "its lease ends":
        (early.directory / "lease.json").write_text(json.dumps({"deadline_boot_ms": 1, "grace_ms": 0}))
    else:
        early.shim.kill()
    early.shim.wait(90)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "nothing of it runs")
    assert "step" not in early.log


def test_it_begins_without_having_been_prepared_in_time(bench: Bench) -> None:
    early = Early(bench, "import time\nprint('step')\n")
    early.let_begin()
    assert early.end()["return_code"] == 0
    assert early.log == "step\n"


KEY = AttemptKey(job_id="job", attempt=2, fence=5)


@for_each(
    "command",
    [
        ("./run.sh",), ("python",), ("python", "-c", "pass"), ("python", "-"), ("python", "-u"), ("torchrun", "x.py"),
        ("python", "-mtrain"), ("pythonic", "x.py"), ("python", "-m"),
    ],
)  # fmt: skip
def test_what_is_no_python_program_begins_from_nothing(command: tuple[str, ...]) -> None:
    with pytest.raises(CommandRefusedError, match="NOT_PREPARABLE"):
        check_preparable(LaunchRequest(key=KEY, command=command))


def test_ranks_of_one_node_and_parts_of_a_gang_across_nodes_are_started_early() -> None:
    request = LaunchRequest(key=KEY, command=("python", "x.py"), has_ranks=True)
    check_preparable(request)
    part = GangPart(world_size=2, group_rank=0, nodes=2, master_address="10.0.0.1")
    check_preparable(replace(request, gang_part=part))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("python", "x.py", "-c"), ("program", "x.py", "-c")),
        (("python3.11", "-u", "-X", "dev", "-m", "pkg", "1"), ("program", "-m", "pkg", "1")),
        (("python", "x.py", "{resume}"), ("imports", "x.py", "")),
    ],
)
def test_the_same_interpreter_is_given_the_file_that_waits(command: tuple[str, ...], expected: tuple[str, ...]) -> None:
    check_preparable(LaunchRequest(key=KEY, command=command))
    argv = ("/bin/" + command[0], *(word.replace("{resume}", "") for word in command[1:]))
    found = early_argv(command, argv)
    assert found[0] == argv[0]
    assert found[found.index(RUNNER) + 1 :] == expected


def begun(command: tuple[str, ...], *arguments: str, **changes: object) -> dict[str, object] | None:
    """Return the words for a launch with other arguments than it was prepared with."""
    plan = LaunchPlan(argv=("/bin/python", "x.py", "1"), environment={"A": "1", "B": ""}, working_directory="/w")
    early = {"argv": list(early_argv(command, plan.argv)), "environment": plan.environment, "working_directory": "/w"}
    values = {"argv": ("/bin/python", *arguments), "environment": {"A": "1", "B": "2"}, "working_directory": "/w"}
    return words_to_begin(command, early, LaunchPlan(**{**values, **changes}))  # type: ignore[arg-type]


def test_it_is_told_what_has_changed_since_it_was_started() -> None:
    assert begun(("python", "x.py", "1"), "x.py", "1") == {"environment": {"B": "2"}}
    assert begun(("python", "x.py", "{resume}"), "x.py", "/r") == {"environment": {"B": "2"}, "argv": ["/r"]}


def test_what_may_have_been_read_too_early_makes_it_begin_from_nothing() -> None:
    assert begun(("python", "x.py", "1"), "x.py", "2") is None
    assert begun(("python", "x.py", "1"), "x.py", "1", working_directory="/else") is None
    assert begun(("python", "x.py", "1"), "x.py", "1", environment={"A": "1"}) is None
    assert begun(("python", "x.py", "1"), "x.py", "1", environment={"A": "1", "B": "x" * 40_000}) is None


def test_ranks_are_told_what_is_common_to_all_and_begin_from_nothing_where_they_are_others() -> None:
    ranks = [RankPlan(rank=rank, log=f"{rank}.log", environment={"RANK": str(rank), "C": "own"}) for rank in (0, 1)]
    command = ("python", "x.py")
    before = LaunchPlan(argv=("/bin/python", "x.py"), environment={"A": "1", "C": "1"}, working_directory="/w")
    early = json.loads(
        json.dumps(
            {
                "argv": early_argv(command, before.argv),
                "environment": before.environment,
                "working_directory": "/w",
                "ranks": [rank.to_record() for rank in ranks],
            }
        )
    )
    plan = replace(before, environment={"A": "2", "C": "2"}, ranks=tuple(ranks))
    assert words_to_begin(command, early, plan) == {"environment": {"A": "2"}}
    elsewhere = replace(ranks[1], environment={"RANK": "1", "C": "own", "MASTER_PORT": "7"})
    assert words_to_begin(command, early, replace(plan, ranks=(ranks[0], elsewhere))) is None
    assert words_to_begin(command, early, replace(plan, ranks=(ranks[0],))) is None


def test_ranks_are_told_where_they_meet_with_the_word_to_begin_at_last() -> None:
    def plan(port: str, address: str, rank: str = "1") -> LaunchPlan:
        own = {"RANK": rank, "MASTER_ADDR": address, "MASTER_PORT": port}
        ranks = (RankPlan(rank=1, log="1.log", environment=own),)
        argv = ("/bin/python", "x.py")
        return LaunchPlan(argv=argv, environment={"MASTER_PORT": "1"}, working_directory="/w", ranks=ranks)

    before, command = plan("0", "10.0.0.1"), ("python", "x.py")
    ranks = [rank.to_record() for rank in before.ranks]
    early = {"argv": list(early_argv(command, before.argv)), "environment": before.environment, "ranks": ranks}
    early["working_directory"] = "/w"
    told = {"environment": {"MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "20007"}}
    assert words_to_begin(command, early, plan("20007", "10.0.0.2")) == told
    assert words_to_begin(command, early, plan("0", "10.0.0.1")) == {"environment": {}}
    assert words_to_begin(command, early, plan("20007", "10.0.0.2", rank="2")) is None


def test_a_disk_that_takes_nothing_delays_the_word_that_all_is_prepared_and_ends_nothing(bench: Bench) -> None:
    early = Early(bench, "import os\nos.environ['SET'] = 'x'\nprint('step', flush=True)\n")
    # In its place the record cannot be written.
    obstacle = early.directory / ".prepared.json.shim"
    obstacle.mkdir()
    wait_until(lambda: (early.directory / "state.json").exists(), "it has started")
    time.sleep(0.5)
    assert early.shim.poll() is None
    obstacle.rmdir()
    early.wait_until_prepared()
    early.let_begin()
    assert early.end()["return_code"] == 0
    assert early.log == "step\n"


class EarlyGang(Early):
    """Two ranks, of which the second one imports until it is let go on."""

    SOURCE = (
        "import os\nimport slow_library\nos.environ['SET'] = 'x'\n"
        "print('step', os.environ['RANK'], os.environ.get('RESUME'), flush=True)\n"
    )

    def __init__(self, bench: Bench) -> None:
        self.script, self.gate = bench.root / "train.py", bench.root / "gate"
        self.script.write_text(self.SOURCE)
        waits = f"import os, time\nwhile os.environ['RANK'] == '1' and not os.path.exists({str(self.gate)!r}):\n"
        (bench.root / "slow_library.py").write_text(f"{waits}    time.sleep(0.01)\n")
        ranks = [
            {"rank": rank, "log": ("out.log", "out.rank-1.log")[rank], "environment": {"RANK": str(rank)}}
            for rank in (0, 1)
        ]
        changes = {"argv": [sys.executable, "-S", RUNNER, "program", str(self.script)], "is_early": True}
        self.directory = bench.prepare("", changes={**changes, "environment": {}, "ranks": ranks, "stop_grace_ms": 500})
        self.shim = bench.start(self.directory)

    @property
    def logs(self) -> list[str]:
        return [(self.directory / name).read_text() for name in ("out.log", "out.rank-1.log")]


def test_a_gang_is_prepared_with_its_last_rank_and_all_ranks_begin_by_one_word(bench: Bench) -> None:
    early = EarlyGang(bench)
    wait_until(lambda: (early.directory / "state.json").exists(), "it has started")
    time.sleep(0.3)
    assert not (early.directory / "prepared.json").exists()
    early.gate.touch()
    early.wait_until_prepared()
    assert early.logs == ["", ""]
    early.let_begin(environment={"RESUME": "there"})
    assert early.end()["return_code"] == 0
    assert early.logs == ["step 0 there\n", "step 1 there\n"]


def test_a_rank_that_is_lost_before_the_word_takes_the_others_with_it_and_none_makes_a_step(bench: Bench) -> None:
    early = EarlyGang(bench)
    early.gate.touch()
    early.wait_until_prepared()
    ranks = json.loads((early.directory / "state.json").read_text())["ranks"]
    os.kill(ranks[1]["pid"], signal.SIGKILL)
    assert early.end()["failed_rank"] == 1
    assert early.logs == ["", ""]
