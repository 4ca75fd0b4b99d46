"""models: what versions there are, what is served, how it came to be; and changing it by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from predictor_service.errors import TrainingDataError, UnknownVersionError
from predictor_service.registry.model_registry import HISTORY_FILE, ModelRegistry, current_user
from predictor_service.registry.version_comparison import compare_versions
from predictor_service.registry.version_history import read_events
from predictor_service.registry.version_store import VersionStore
from predictor_service.settings import SETTINGS, Settings

_PATH: Final = click.Path(path_type=Path)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    command = SETTINGS.options("state_dir")(command)
    return click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")(command)


def _folder(settings: Settings) -> Path:
    root = settings.state_dir / "models"
    if not root.is_dir():
        remedy = "train the first one with `cotenant retrain`, or name the folder with --state-dir"
        raise UnknownVersionError(f"{root.parent} has no model versions", remedy=remedy)
    return root


def _store(settings: Settings) -> VersionStore:
    """What verbs read that change nothing: the folder may be of another user, or take no writes."""
    return VersionStore(_folder(settings))


@contextmanager
def _registry(settings: Settings) -> Iterator[ModelRegistry]:
    registry = ModelRegistry(_folder(settings), current_user())
    try:
        yield registry
    finally:
        registry.close()


def _date(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@click.group("models")
def models() -> None:
    """List, show, compare, promote and roll back model versions; watch their drift."""


@models.command("list")
@_options
def list_command(settings: Settings, output: str) -> None:
    """List the versions and the history; the served one is marked."""
    store = _store(settings)
    current = store.current()
    rows = [{"version": name, "served": name == current} for name in store.names()]
    events = read_events(_folder(settings) / HISTORY_FILE)
    if output == "json":
        history = [
            {
                "number": event.number,
                "at_ms": event.at_ms,
                "action": event.action.value,
                "version": event.version,
                "previous": event.previous,
                "who": event.who,
                "why": event.why,
                "details": event.details,
            }
            for event in events
        ]
        click.echo(json.dumps({"versions": rows, "history": history}))
        return
    click.echo(f"  {'VERSION':<18}(* = served)")
    for row in rows:
        click.echo(f"{'*' if row['served'] else ' '} {row['version']}")
    if events:
        click.echo(f"\n{'WHEN':<{len(_date(0))}}  {'ACTION':<12}{'VERSION':<18}WHO: WHY")
    for event in events:
        click.echo(f"{_date(event.at_ms)}  {event.action.value:<12}{event.version or '-':<18}{event.who}: {event.why}")


@models.command("show")
@click.argument("version", required=False)
@_options
def show_command(version: str | None, settings: Settings, output: str) -> None:
    """Show the card of a version (the served one by default), or its manifest with -o json."""
    store = _store(settings)
    name = store.find(version or store.current() or "")
    click.echo(store.manifest(name).to_json() if output == "json" else store.card(name))


@models.command("promote", epilog="Example:  cotenant models promote VERSION --why 'measured on our nodes'")
@click.argument("version")
@click.option("--why", required=True, help="For the history.")
@_options
def promote_command(version: str, why: str, settings: Settings, output: str) -> None:
    """Serve VERSION, whatever the gate decided, once it has reproduced its golden vectors."""
    with _registry(settings) as registry:
        name = registry.store.find(version)
        registry.promote(name, why)
    _say_served(name, output)


@models.command("rollback", epilog="Example:  cotenant models rollback --why 'its bounds break'")
@click.option("--why", required=True, help="For the history.")
@_options
def rollback_command(why: str, settings: Settings, output: str) -> None:
    """Serve the version that was served before."""
    with _registry(settings) as registry:
        name = registry.roll_back(why)
    _say_served(name, output)


def _say_served(name: str, output: str) -> None:
    click.echo(json.dumps({"served": name}) if output == "json" else name)


@models.command("diff", epilog="Example:  cotenant models diff VERSION")
@click.argument("before")
@click.argument("after", required=False)
@_options
def diff_command(before: str, after: str | None, settings: Settings, output: str) -> None:
    """Show what differs between two versions (AFTER: the served one by default)."""
    store = _store(settings)
    names = [store.find(before), store.find(after or store.current() or "")]
    differences = compare_versions(*(store.manifest(name) for name in names))
    if output == "json":
        fields = [{"what": item.what, "before": item.before, "after": item.after} for item in differences]
        click.echo(json.dumps({"before": names[0], "after": names[1], "differences": fields}))
        return
    if not differences:
        click.echo(f"{names[0]} is the version itself" if names[0] == names[1] else "nothing differs")
        return
    click.echo(f"{'':<62}{names[0]:<20}{names[1]}")
    for item in differences:
        click.echo(f"{item.what:<62}{item.before or '-':<20}{item.after or '-'}")


@models.command("drift")
@_options
@click.pass_context
def drift_command(context: click.Context, settings: Settings, output: str) -> None:
    """Show how far recent predictions were from the measured values. Exit status 4: an alarm is on."""
    # Imported here: only this verb reads the journal.
    from predictor_service.retraining.drift import describe_drift, read_drift

    path = settings.state_dir / "journal.sqlite"
    if not path.is_file():
        raise TrainingDataError(f"{path.parent} has no journal", remedy="outcomes come from a service that ran there")
    report = read_drift(path)
    click.echo(json.dumps(report.as_json()) if output == "json" else describe_drift(report))
    context.exit(4 if report.is_alarming else 0)
