"""A scheduler that sees its nodes' files refuses at once what is not there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from cotenant.program_lookup import script_of
from cotenant.v1 import node_agent_pb2, scheduling_pb2
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.launch_rules import launch_rules
from scheduler_service.adapters.predictor.memory_ranges import MemoryRanges
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.core import events
from scheduler_service.errors import NoNodeRunsItError
from scheduler_service.grpc_api.jobs.admission import Admission
from tests.support.cases import for_each
from tests.support.engine_play import Play
from tests.support.scheduler_process import job_spec
from tests.support.scheduling import gpu, node


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a script that can be started, one that cannot, and one for Python."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "locked.sh").write_text("#!/bin/sh\n")
    for name in ("run.sh", "torchrun"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def warnings_about(work: Path, *, sees_files: bool = True, force: bool = False, **fields: Any) -> list[str]:
    """Return the codes of a submission to one node of an owner, which runs anything below the folder."""
    play, sessions = Play(nodes=0), AgentSessions()
    play.tell(events.NodeJoined, node=node("n0", [gpu("n0.0")]))
    rules = node_agent_pb2.LaunchRules(any_command=True, directories=[str(work)], executables=[sys.executable])
    sessions.open("n0", now_ms=0, launch_rules=launch_rules(node_agent_pb2.Hello(launch_rules=rules)))
    ranges = MemoryRanges(PredictorClient(None, deadline_s=1), deadline_s=1)
    admission = Admission(sessions=sessions, ranges=ranges, sees_files=sees_files)
    request = scheduling_pb2.SubmitJobRequest(spec=job_spec(**{"working_directory": str(work), **fields}), force=force)
    found = asyncio.run(admission.review(play.engine.state, request, seconds_left=20))
    return [warning.code for warning in found]


@pytest.mark.parametrize(
    ("fields", "finding", "remedy"),
    [
        ({"command": ["no-such-program"]}, "no program 'no-such-program' on PATH", "--"),
        ({"command": ["./absent.sh"]}, "cannot be found", "--"),
        ({"command": ["./locked.sh"]}, "not executable: chmod +x", "--"),
        (
            {"command": ["cd", "src", "&&", "python", "train.py"]},
            "a word of shells: put the whole line behind bash",
            "--",
        ),
        ({"command": ["DATA=/data/x", "python", "train.py"]}, "submit it as --env DATA=/data/x", "--"),
        ({"command": ["python src/train.py --lr 1"]}, "several words in one: take off the quotes", "--"),
        ({"command": ["CUDA_VISIBLE_DEVICES=0 python train.py"]}, "several words in one: take off the quotes", "--"),
        ({"command": ["x" * 300]}, "on PATH", "--"),
        ({"command": ["./" + "x" * 300]}, "cannot be found (File name too long)", "--"),
        ({"command": ["exp.ipynb"]}, "nbconvert --to script exp.ipynb", "--"),
        ({"command": ["locked.sh"]}, "is ./locked.sh", "--"),
        ({"command": ["python", "first try.ipynb"]}, "runs no notebook", "nbconvert --to script 'first try.ipynb'"),
        ({"command": ["python", "trian.py"]}, "has no file trian.py", "--workdir"),
        ({"command": ["./torchrun", "--nproc-per-node", "2", "trian.py"]}, "has no file trian.py", "--workdir"),
        ({"command": ["bash", "-e", "absent.sh"]}, "has no file absent.sh", "--workdir"),
        ({"working_directory": "/no/such/folder"}, "has no directory /no/such/folder", "--workdir"),
        ({"working_directory": "/"}, "not in /", "--allow-directory"),
    ],
)
def test_what_is_not_there_is_refused_with_cause_and_remedy_and_forced_with_a_warning(
    work: Path, fields: dict[str, Any], finding: str, remedy: str
) -> None:
    with pytest.raises(NoNodeRunsItError) as caught:
        warnings_about(work, **fields)
    assert finding in caught.value.message
    assert remedy in caught.value.metadata["remedy"]
    assert "--force" in caught.value.metadata["remedy"]
    assert warnings_about(work, force=True, **fields) == ["FORCED"]


@for_each("word", ["x", "./x", "A=", "x.ipynb"])
def test_a_refusal_shows_no_more_of_a_long_word_than_an_answer_may_hold(work: Path, word: str) -> None:
    long = "y" * 100_000 + word if word.endswith("ipynb") else word + "y" * 100_000
    with pytest.raises(NoNodeRunsItError) as caught:
        warnings_about(work, command=[long])
    assert len(caught.value.message) + len(caught.value.metadata["remedy"]) < 8_000


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py"], ["./run.sh"], ["bash", "run.sh"], [sys.executable, "-u", "train.py"], ["sh", "-c", "x"],
        ["python", "-m", "pack.age"], ["python", "-Wignore", "whatever"], ["python", "{resume}/train.py"],
    ],
)  # fmt: skip
def test_what_is_there_or_not_certain_to_be_missing_is_accepted(work: Path, command: list[str]) -> None:
    assert warnings_about(work, command=command) == []


def test_a_scheduler_that_sees_other_files_refuses_nothing_by_them(work: Path) -> None:
    assert warnings_about(work, sees_files=False, command=["./absent.sh"]) == []


def test_a_program_is_looked_for_on_the_path_that_the_job_brings(work: Path) -> None:
    assert warnings_about(work, command=["run.sh"], environment={"PATH": str(work)}) == []
    with pytest.raises(NoNodeRunsItError):
        warnings_about(work, command=["python"], environment={"PATH": str(work)})


@for_each(
    ("command", "script"),
    [
        (["python3.12", "-u", "-O", "a.py", "b.py"], "a.py"), (["/venv/bin/python", "pkg/"], "pkg/"),
        (["python"], ""), (["python", "-c", "x"], ""), (["python", "-uc", "x"], ""), (["python", "-X", "dev", "a"], ""),
        (["bash", "-l", "a.sh"], "a.sh"), (["bash", "--login", "a.sh"], ""), (["./a.py", "b.py"], ""), ([], ""),
        (["torchrun", "a.py", "b.py"], "a.py"), (["torchrun", "--standalone", "--nproc-per-node=2", "a.py"], "a.py"),
        (["/venv/bin/torchrun", "--nproc_per_node", "2", "--nnodes", "1", "a.py", "--lr", "1"], "a.py"),
        (["torchrun", "-m", "pack.age"], ""), (["torchrun", "--no-python", "./run.sh"], ""), (["torchrun"], ""),
        (["torchrun", "--not-known-here", "2", "a.py"], ""), (["torchrun", "{resume}/a.py"], ""),
    ],
)  # fmt: skip
def test_a_script_is_named_only_where_it_is_certain(command: list[str], script: str) -> None:
    assert script_of(command) == script
