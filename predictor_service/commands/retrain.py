"""retrain: train on the data that is there now, and serve the result only if it is not worse."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cotenant.command_run import EXIT_INTERRUPTED
from cotenant.structured_log import start_logging
from predictor_service.registry.model_registry import ModelRegistry, current_user
from predictor_service.settings import SETTINGS, Settings

if TYPE_CHECKING:
    from predictor_service.retraining.retraining_run import RetrainingResult

_PATH: Final = click.Path(path_type=Path)
EXIT_REFUSED: Final = 4
_NICENESS: Final = 5


@click.command("retrain")
@SETTINGS.options("state_dir", "datasets", "seed")
@click.option("--from-outcomes", is_flag=True, help="Train on the profile store as well: measurements of running jobs.")
@click.option(
    "--device", "devices", multiple=True, help="Learn this device type only, the others stay as served; repeatable."
)
@click.option("--why", default="retrained by command", help="For the history.")
@click.option("--who", help="For the history; the account that runs this by default.")
@click.option("--end-with-stdin", is_flag=True, hidden=True, help="For a service: end when its pipe closes.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@click.pass_context
def retrain_command(
    context: click.Context,
    *,
    settings: Settings,
    from_outcomes: bool,
    devices: tuple[str, ...],
    why: str,
    who: str | None,
    end_with_stdin: bool,
    output: str,
) -> None:
    """Train, compare with the served version on the same held-out groups, promote if not worse.

    Exit status 4: the new version or its data was refused; the served one stays.
    """
    if end_with_stdin:
        _end_with_stdin()
    # Imported here: the libraries that train take seconds to load.
    from predictor_service.retraining.retraining_run import RetrainingOutcome, RetrainingPlan, retrain

    start_logging("predictor", "error")
    plan = RetrainingPlan(
        state_dir=settings.state_dir,
        datasets=settings.datasets,
        from_outcomes=from_outcomes,
        devices=devices,
        seed=settings.seed,
        why=why,
    )
    registry = ModelRegistry(settings.state_dir / "models", who or current_user())
    try:
        result = retrain(plan, registry, lambda line: click.echo(line, err=True))
    finally:
        registry.close()
    click.echo(json.dumps(result.as_json()) if output == "json" else _as_table(result))
    context.exit(EXIT_REFUSED if result.outcome is RetrainingOutcome.REFUSED else 0)


def _end_with_stdin() -> None:
    """Ends this process at once when the pipe from the service closes, and lets the service go first until then."""

    def wait() -> None:
        # Not through sys.stdin, whose lock this thread would still hold when the interpreter ends.
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os._exit(EXIT_INTERRUPTED)

    os.nice(_NICENESS)
    threading.Thread(target=wait, name="end-with-stdin", daemon=True).start()


def _as_table(result: RetrainingResult) -> str:
    lines = [f"{result.outcome.value}: {result.version or 'nothing was trained'}"]
    lines += [f"  {reason}" for reason in result.why]
    lines.append(f"served now: {result.served or 'none'}")
    if result.comparisons:
        lines.append(f"{'':<44}{'rows':>8}{'served':>10}{'new':>10}{'margin':>10}")
    for item in result.comparisons:
        errors = f"{item.champion_error:>10.4f}{item.challenger_error:>10.4f}{item.margin_ratio:>10.1%}"
        lines.append(f"{item.device + ', ' + item.target:<44}{item.rows:>8}{errors}")
    return "\n".join(lines)
