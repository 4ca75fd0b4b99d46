"""Verbs that a service's own program runs: backup, restore, export-log, log, audit, decide, observe, datasets, ..."""

from __future__ import annotations

import click

from cotenant.cli.session import tell
from cotenant.cli.settings import point_at_state, resolve_settings, state_folder
from cotenant.programs import become

# Everything behind the verb, --help included, belongs to the program.
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _pass_on(verb: str, summary: str, *, reads_log: bool = False) -> click.Command:
    @click.command(name=verb, help=summary, context_settings=_PASSED_ON)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        point_at_state()
        if reads_log:
            _tell_whose_log(arguments)
        become(verb, arguments)

    return command


def _tell_whose_log(arguments: tuple[str, ...]) -> None:
    """Says so where a scheduler was named: the verb is about files of this machine, and asks none."""
    found = resolve_settings({})
    names_place = any(one.startswith(("--state-dir", "-h", "--help")) for one in arguments)
    if found.is_default("scheduler") or names_place:
        return
    tell(
        f"note: the scheduler at {found.settings.scheduler} is not asked: this is about the state in "
        f"{state_folder(found.settings)} on this machine; --state-dir FOLDER names another",
        style="yellow",
    )


profile = _pass_on(
    "profile", "Measure jobs alone and co-located: plan, run, status, report (python -m cotenant_profiler)."
)
calibrate = _pass_on("calibrate", "Measure the device at hand within a minute (python -m cotenant_profiler calibrate).")
backup = _pass_on("backup", "Back the scheduler's state up (python -m scheduler_service backup).", reads_log=True)
restore = _pass_on("restore", "Restore the scheduler's state (python -m scheduler_service restore).", reads_log=True)
export_log = _pass_on(
    "export-log", "Write the event log as JSON lines (python -m scheduler_service export-log).", reads_log=True
)
log = _pass_on("log", "Verify the event log, record by record (python -m scheduler_service log).")
audit = _pass_on("audit", "Show who did what (python -m scheduler_service audit).", reads_log=True)
decide = _pass_on("decide", "Decide on a snapshot file of another cluster (python -m scheduler_service decide).")
datasets = _pass_on(
    "datasets", "Import public measured sets, check dataset folders (python -m predictor_service datasets)."
)
profiles = _pass_on(
    "profiles", "List, export and forget what running jobs taught (python -m predictor_service profiles)."
)
observe = _pass_on("observe", "Measure what runs on this machine's devices (python -m cotenant_agent observe).")
evaluate = _pass_on("evaluate", "Score a model on measured rows (python -m predictor_service evaluate).")
simulate = _pass_on("simulate", "Run a workload in simulated time (python -m cotenant_simulator simulate).")
shadow = _pass_on("shadow", "Report what sharing would have saved (python -m cotenant_simulator shadow).")
models = _pass_on("models", "List, show, promote, roll back model versions (python -m predictor_service models).")
retrain = _pass_on("retrain", "Learn anew, serve it if not worse (python -m predictor_service retrain).")
