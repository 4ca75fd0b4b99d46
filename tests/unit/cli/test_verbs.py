"""What the verbs send and print, format by format."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from cotenant.cli import doctor_command
from cotenant.cli.main import TOPICS, VERBS, run
from cotenant.v1 import resources_pb2, scheduling_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor, FakeScheduler

ROOT = Path(__file__).parents[3]
GRAPH = str(ROOT / "examples/jobs/graphs/cnn.onnx")
JOB_FILE = str(ROOT / "examples/jobs/1-cnn.yaml")


def submitted(scheduler: FakeScheduler) -> scheduling_pb2.SubmitJobRequest:
    return next(r for r in scheduler.seen if isinstance(r, scheduling_pb2.SubmitJobRequest))


def test_json_has_the_field_names_of_the_protos(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    jobs = json.loads(cotenant("ps", "-o", "json").out)["jobs"]
    assert [job["job_id"] for job in jobs] == ["job-000003", "job-000002", "job-000001"]
    assert jobs[2]["memory_reserved_bytes"] == str(int(0.75 * 2**30))
    assert jobs[2]["phase"] == "JOB_PHASE_RUNNING"
    assert jobs[0]["steps_done"] == "0"


def test_yaml_says_the_same_as_json(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    as_json, as_yaml = cotenant("gpus", "-o", "json").out, cotenant("gpus", "-o", "yaml").out
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_names_come_one_a_line(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert cotenant("ps", "-o", "name").out == "job-000003\njob-000002\njob-000001\n"
    assert cotenant("ls", "-o", "name", "--phase", "pending").out == "job-000003\n"


def test_a_job_file_is_submitted_with_its_graph(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    assert cotenant("submit", JOB_FILE).code == 0
    spec = submitted(scheduler).spec
    assert predictor.graphs[spec.graph_sha256] == Path(GRAPH).read_bytes()
    assert (spec.name, spec.steps_total, spec.working_directory) == ("cnn", 450, str(ROOT))
    assert spec.share == resources_pb2.SHARE_MODE_SAFE
    assert spec.settings.optimizer == resources_pb2.OPTIMIZER_MOMENTUM


def test_flags_win_over_the_job_file_and_leave_the_rest(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    assert cotenant("submit", JOB_FILE, "--name", "other", "--batch-size", "32", "--share", "never").code == 0
    spec = submitted(scheduler).spec
    assert (spec.name, spec.settings.global_batch_size, spec.share) == ("other", 32, resources_pb2.SHARE_MODE_NEVER)
    assert spec.settings.optimizer == resources_pb2.OPTIMIZER_MOMENTUM
    assert spec.settings.input_wait_ms == 12.5  # 25 ms of a batch of 64


def test_a_command_needs_no_job_file(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    flags = ("--steps", "5", "--env", "SEED=1", "--progress-regex", "at (?P<step>[0-9]+)")
    outcome = cotenant("submit", *flags, "--", "python", "train.py", "--steps", "5")
    assert outcome.code == 0
    spec = submitted(scheduler).spec
    assert spec.progress_regex == "at (?P<step>[0-9]+)"
    assert list(spec.command) == ["python", "train.py", "--steps", "5"]
    assert spec.graph_sha256 == ""
    assert dict(spec.environment) == {"SEED": "1"}


def test_a_dry_run_submits_nothing_and_predicts(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    outcome = cotenant("submit", JOB_FILE, "--dry-run", "-o", "json")
    assert submitted(scheduler).validate_only
    assert len(scheduler.jobs) == 3
    assert json.loads(outcome.out)["predictions"]["cpu-standin"]["fits"] is True


def test_a_misspelt_key_is_refused_with_the_right_one(cotenant: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: [python]\nstesp: 5\n")
    outcome = cotenant("submit", str(path))
    assert outcome.code == 2
    assert "did you mean 'steps'?" in outcome.err


def test_cancelling_twice_is_harmless(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    first, second = cotenant("cancel", "resnet"), cotenant("cancel", "resnet")
    assert first.out == second.out == "job-000003  resnet  cancelled\n"


def test_a_tail_is_counted_in_lines(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert cotenant("logs", "job-000001", "--tail", "2").out == "step 100/450 loss 1.0\nstep 120/450 loss 1.0\n"


def test_a_configured_predictor_gets_the_graph_without_weights(cotenant: CommandLine, predictor: FakePredictor) -> None:
    outcome = cotenant("predict", GRAPH, "--batch-size", "8", "--bind", "tokens=16", "-o", "json")
    assert json.loads(outcome.out)["largest_batch_size_that_fits"] == "96"
    request = predictor.seen[0]
    assert request.onnx_graph == Path(GRAPH).read_bytes()  # type: ignore[attr-defined]
    assert dict(request.settings.dimension_bindings) == {"tokens": 16}  # type: ignore[attr-defined]


def test_a_policy_is_chosen_with_parameters(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    outcome = cotenant("policies", "use", "horus", "--set", "share_limit=3", "--dry-run", "-o", "json")
    assert json.loads(outcome.out)["effective_parameters"] == {"share_limit": 3.0}
    request = next(r for r in scheduler.seen if isinstance(r, scheduling_pb2.SetPolicyRequest))
    assert request.validate_only


def test_an_unknown_policy_is_answered_with_the_known_ones(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    outcome = cotenant("policies", "describe", "horsu")
    assert (outcome.code, "did you mean 'horus'?" in outcome.err) == (2, True)


@pytest.mark.parametrize("value", ["3", ""])
def test_what_is_in_use_of_a_policy_has_a_column_where_that_is_known(
    cotenant: CommandLine, scheduler: FakeScheduler, value: str
) -> None:
    scheduler.policies[1].parameters[0].value_in_use = value
    table = cotenant("policies", "describe", "horus").out
    assert ("IN USE" in table) == bool(value)
    assert "Jobs on one GPU." in table


def test_colour_needs_a_terminal_and_no_objection(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert "\x1b" not in cotenant("ps").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_completion(shell: str, cotenant: CommandLine) -> None:
    outcome = cotenant("completion", shell)
    assert "_COTENANT_COMPLETE" in outcome.out
    assert outcome.code == 0


def test_the_shell_is_offered_ids_and_names(
    scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_COTENANT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "cotenant describe lst")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        run([])
    assert capfd.readouterr().out == "plain,lstm-waiting\n"


@pytest.mark.parametrize("group", ["certs", "config", "convergence", "engine", "nodes", "policies"])
def test_the_sentence_about_a_command_is_not_cut(group: str, cotenant: CommandLine) -> None:
    listed = cotenant(group, "--help").out.partition("Commands:")[2].partition("Example")[0]
    assert listed.strip()
    assert [line for line in listed.splitlines() if line.endswith("...")] == []


def test_doctor_ends_with_what_can_be_typed_next(
    cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = cotenant("doctor").err
    monkeypatch.delenv("COTENANT_SCHEDULER")
    for question in ("is_serving", "find_tls_mismatch", "_is_listening"):
        monkeypatch.setattr(doctor_command, question, lambda *_, **__: False)
    alone = cotenant("doctor").err
    assert ("cotenant submit" in reached, "cotenant up" in reached) == (True, False)
    assert ("cotenant submit" in alone, "cotenant up" in alone) == (True, True)


def test_help_lists_every_verb_below_its_topic_and_the_exit_codes(cotenant: CommandLine) -> None:
    out = cotenant("--help").out
    assert re.findall(r"^  ([a-z][a-z-]*) +[A-Z]", out, re.MULTILINE) == list(VERBS)
    assert all(f"\n{heading}:\n  {verb} " in out for verb, heading in TOPICS.items())
    assert "4  will not fit" in out


def test_how_many_batches_a_step_takes_is_said_by_a_flag_or_a_job_file(
    cotenant: CommandLine, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    assert cotenant("submit", "--accumulation", "4", "--steps", "5", "--", "python", "train.py").code == 0
    assert submitted(scheduler).spec.batches_per_step == 4
    (tmp_path / "job.yaml").write_text("command: [python, train.py]\naccumulation: 0\n")
    outcome = cotenant("submit", str(tmp_path / "job.yaml"))
    assert (outcome.code, "accumulation must be at least 1" in outcome.err) == (2, True)
