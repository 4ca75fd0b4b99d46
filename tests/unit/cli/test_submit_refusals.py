"""What submit says of a job that cannot run, or may not fit."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from google.rpc import code_pb2  # type: ignore[import-untyped]

from cotenant.cli import setting_options
from cotenant.cli.setting_options import naming_flags
from cotenant.cli.submit_command import submit
from cotenant.command_run import run_command
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.grpc_api.validation import spec_violations
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor, FakeScheduler

COMMAND = ("submit", "--steps", "5", "--", "bash", "run.sh")
WARNING = resources_pb2.Warning(code="MEMORY_MAY_NOT_FIT", message="3 GiB of 2 GiB")


def request_of(scheduler: FakeScheduler) -> scheduling_pb2.SubmitJobRequest:
    return next(one for one in scheduler.seen if isinstance(one, scheduling_pb2.SubmitJobRequest))


def test_what_no_node_runs_exits_with_four_and_the_remedy(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    remedy = "ask for fewer --gpus, or submit it anyway with --force"
    scheduler.refusals["SubmitJob"] = (code_pb2.FAILED_PRECONDITION, "no node", "NO_NODE_RUNS_IT", remedy)
    outcome = cotenant(*COMMAND)
    assert (outcome.code, outcome.out) == (4, "")
    assert outcome.err == f"error: no node [NO_NODE_RUNS_IT]\n  remedy: {remedy}\n"


@pytest.mark.parametrize("flags", [(), ("--force",)])
def test_force_is_passed_on(flags: tuple[str, ...], cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert cotenant("submit", *flags, *COMMAND[1:]).code == 0
    assert request_of(scheduler).force is bool(flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--after", "one,two", "--device", "a100,l4"),
        ("--after", "one", "--after", "two", "--device", "a100", "--device", "l4"),
    ],
    ids=["by commas", "one by one"],
)
def test_every_item_of_a_list_counts_however_it_is_given(
    flags: tuple[str, ...], cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    for name in ("one", "two"):
        assert cotenant("submit", "--name", name, *COMMAND[1:]).code == 0
    assert cotenant("submit", *flags, *COMMAND[1:]).code == 0
    *_, first, second, last = scheduler.jobs
    spec = scheduler.jobs[last].spec
    assert list(spec.after_job_ids) == [first, second]
    assert len(spec.allowed_devices) == 2


def test_a_warning_goes_to_stderr_and_into_the_data(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    scheduler.warnings = [WARNING]
    outcome = cotenant(*COMMAND[:1], "-o", "json", *COMMAND[1:])
    assert outcome.err == "warning: MEMORY_MAY_NOT_FIT: 3 GiB of 2 GiB\n"
    job = json.loads(outcome.out)
    assert job["warnings"] == [{"code": "MEMORY_MAY_NOT_FIT", "message": "3 GiB of 2 GiB"}]
    assert job["spec"]["command"] == ["bash", "run.sh"]
    assert cotenant(*COMMAND[:1], "-o", "name", *COMMAND[1:]).out == f"{list(scheduler.jobs)[-1]}\n"


def test_a_dry_run_prints_the_warnings_as_well(
    cotenant: CommandLine, scheduler: FakeScheduler, predictor: FakePredictor
) -> None:
    scheduler.warnings = [WARNING]
    outcome = cotenant(*COMMAND[:1], "--dry-run", "-o", "json", *COMMAND[1:])
    assert json.loads(outcome.out)["warnings"][0]["code"] == "MEMORY_MAY_NOT_FIT"
    assert "MEMORY_MAY_NOT_FIT" in outcome.err


def test_a_field_that_a_service_refuses_is_named_by_the_flag_that_sets_it() -> None:
    spec = scheduling_pb2.JobSpec(
        name="\N{ROCKET} long run",
        tenant="a b",
        command=["true"],
        progress_regex="(",
        working_directory="here",
        max_slowdown_ratio=float("nan"),
    )
    told = [naming_flags(f"{one.field}: {one.description}").partition(":")[0] for one in spec_violations(spec)]
    assert set(told) == {"--name", "--tenant", "--progress-regex", "--workdir", "--max-slowdown"}
    flags = {flag for parameter in submit.params for flag in parameter.opts}
    assert flags.issuperset(setting_options._FLAGS.values())


def test_links_that_lead_round_in_circles_are_an_error_with_a_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    line = click.Command("look", callback=lambda: (tmp_path / "there").resolve(strict=True))
    assert run_command(line, [], prog_name="look") == 1
    assert "round in circles" in capfd.readouterr().err
