"""Whoever comes from another scheduler is told which verb or flag does it here, and what is not read of a script."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from cotenant.cli.batch_lines import background_note, batch_lines_note, no_program_note
from cotenant.cli.main import ALIASES, VERBS
from cotenant.cli.main import cotenant as group
from cotenant.cli.verb_habits import FLAGS, HABITS
from tests.support.cases import for_each
from tests.support.cli_cluster import CommandLine

SCRIPT = """#!/bin/bash
#SBATCH --job-name=mlp
#SBATCH --gres=gpu:1 -t 00:30:00
#SBATCH --array=0-3 --mail-type=END
python train.py  # SBATCH is no word of ours
"""


def test_a_verb_of_another_scheduler_is_answered_with_what_does_it_here(cotenant: CommandLine) -> None:
    assert "No such command 'squeue'; here that is `cotenant ps`" in cotenant("squeue", "-u", "me").err
    # The nearest name would be one that lets the job start.
    assert "here that is `cotenant cancel JOB`" in cotenant("delete", "job-1").err
    assert set(HABITS).isdisjoint([*VERBS, *ALIASES])
    for command in HABITS.values():
        words = command.split()
        assert words[0] == "Ctrl-C" or words[1] in [*VERBS, "--help"]
        assert "`" not in command  # the message quotes it


@for_each(
    ("words", "here"),
    [
        ("submit --dependency afterok:57 -- true", "No such option '--dependency'; here that is --after"),
        ("submit -J mlp -- true", "No such option '-J'; here that is --name"),
        ("ps --json", "No such option '--json'; here that is -o json"),
        ("logs -n 20 job-1", "No such option '-n'; here that is --tail"),
    ],
)
def test_a_flag_of_another_scheduler_is_answered_with_the_one_here(
    cotenant: CommandLine, words: str, here: str
) -> None:
    outcome = cotenant(*words.split())
    assert (outcome.code, here in outcome.err) == (2, True)


@for_each("verb", FLAGS)
def test_flags_of_others_are_none_of_ours_and_those_told_are(verb: str) -> None:
    command = group.get_command(click.Context(group), verb)
    assert command is not None
    own = {name for parameter in command.params for name in parameter.opts}
    assert own.isdisjoint(FLAGS[verb])
    assert {each.split()[0] for each in FLAGS[verb].values()} <= own


@for_each("command", [["bash", "job.sh"], ["./job.sh"], ["sh", "-e", "job.sh"]])
def test_lines_for_another_scheduler_are_said_not_to_be_read(
    tmp_path_factory: pytest.TempPathFactory, command: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("batch")
    (folder / "job.sh").write_text(SCRIPT)
    note = batch_lines_note(command, folder)
    assert note == (
        f"{command[-1]} has 3 lines for another scheduler (#SBATCH), not read here; "
        "say the same with --name, --gpus, --time-limit, --array"
    )


def test_one_node_and_files_of_messages_need_no_flag_here(tmp_path: Path) -> None:
    lines = "#SBATCH -e mlp.err -v\n#SBATCH --nodes=1 --ntasks 1\n#SBATCH -N1 -t10\n#SBATCH --ntasks-per-node=4\n"
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{lines}")
    note = batch_lines_note(["bash", "job.sh"], tmp_path)
    assert note.endswith("not read here; say the same with --time-limit, --ranks")


def test_flags_of_pbs_and_lsf_are_not_read_as_those_of_slurm(tmp_path: Path) -> None:
    for line in ("#PBS -N mlp -q gpu", "#BSUB -W 2:00 -n 4"):
        (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{line}\n")
        note = batch_lines_note(["bash", "job.sh"], tmp_path)
        assert note == f"job.sh has 1 line for another scheduler ({line.split()[0]}), not read here"


def test_a_script_without_such_lines_and_what_is_no_script_need_no_note(tmp_path: Path) -> None:
    (tmp_path / "plain.sh").write_text("#!/bin/bash\n# SBATCH --gres=gpu:1\n")
    for command in (["bash", "plain.sh"], ["python", "-m", "train"], ["bash", "absent.sh"], [".", "x"]):
        assert batch_lines_note(command, tmp_path) == ""


@for_each(
    ("command", "is_left"),
    [
        (["nohup", "bash", "-c", "python train.py > out.txt 2>&1 & "], True),
        (["bash", "-lc", "python train.py &"], True),
        (["bash", "-c", "python train.py & wait"], False),
        (["python", "train.py", "&"], False),
        (["bash", "-c", "python train.py"], False),
    ],
)
def test_a_program_that_is_left_in_the_background_is_said_to_end_with_its_shell(
    command: list[str], is_left: bool
) -> None:
    assert ("leave the last & out" in background_note(command)) is is_left


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["python"], "no standard input"),
        (["/venv/bin/python3.11", "-"], "no standard input"),
        (["bash", "-s"], "no standard input"),
        (["python", "unsaved.py"], "unsaved.py is empty"),
        (["python", "-u", "unsaved.py", "3"], "unsaved.py is empty"),
        (["python", "train.py"], ""),
        (["python", "absent.py"], ""),
        (["python", "-c", "print(1)"], ""),
        (["bash", "-c", "python -"], ""),
        (["make"], ""),
        ([], ""),
    ],
)
def test_a_command_that_starts_nothing_is_told(words: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "unsaved.py").touch()
    (tmp_path / "train.py").write_text("import torch\n")
    note = no_program_note(words, tmp_path)
    assert (told in note) if told else not note
