"""Jobs without a name are called after their script."""

from __future__ import annotations

import shlex
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cotenant.cli.submit_command import read_content_of
from cotenant.job_file import parse_job
from cotenant.job_name import name_of
from cotenant.names import NAME_PATTERN
from tests.support.cases import for_each


@for_each(
    ("command", "name"),
    [
        ("python train.py", "train"),
        ("/opt/venv/bin/python3.11 -u -W ignore src/train.py --lr 0.1", "train"),
        ("python -m package.module --epochs 3", "package.module"),
        ("python -m package.__main__", "package"),
        ("python -c 'print(1)'", "python"),
        ("python", "python"),
        ("./run.sh", "run"),
        ("bash run.sh fast", "run"),
        ("bash -o pipefail run.sh", "run"),
        ("bash -c 'python train.py'", "bash"),
        ("bash -lc 'python train.py'", "bash"),
        ("torchrun --nproc_per_node 2 train.py --lr 1", "train"),
        ("torchrun --nproc-per-node=2 -m package.train", "package.train"),
        ("python -m torch.distributed.run --nproc-per-node 2 src/train.py", "train"),
        ("accelerate launch --config_file a.yaml train.py", "train"),
        ("env LR=1 nohup nice -n 10 python train.py", "train"),
        ("OMP_NUM_THREADS=1 python train.py", "train"),
        ("conda run -n paper python train.py", "train"),
        ("uv run train.py", "train"),
        ("/opt/bin/my_trainer --fast", "my_trainer"),
        ("./a.out", "a.out"),
        ("python 'my träning.py'", "my-traning"),
        ("python 'größe v2.py'", "grosse-v2"),
        ("python обучение.py", "python"),
        ("python ..", "python"),
        ("'' ''", "job"),
        ("...", "job"),
    ],
)
def test_a_job_is_called_after_its_script(command: str, name: str) -> None:
    assert name_of(shlex.split(command)) == name


@given(
    st.lists(st.one_of(st.text(max_size=80), st.sampled_from(["python", "-m", "env", "bash", "-c", "./"])), max_size=6)
)
def test_every_command_gives_a_name_that_the_scheduler_takes(command: list[str]) -> None:
    assert NAME_PATTERN.fullmatch(name_of(command))


def test_a_submission_from_flags_is_called_after_its_script_unless_it_is_named() -> None:
    command = ("python", "train.py")
    unnamed, folder = read_content_of(command, {"steps": 5})
    named, _ = read_content_of(command, {"steps": 5, "name": "mine"})
    assert [parse_job(content, folder=folder).spec.name for content in (unnamed, named)] == ["train", "mine"]


def test_a_job_file_without_a_name_is_called_after_its_script(tmp_path: Path) -> None:
    content = {"command": ["./run.sh"], "steps": 3}
    assert parse_job(content, folder=tmp_path).spec.name == "run"
    assert parse_job({**content, "name": "mine"}, folder=tmp_path).spec.name == "mine"
