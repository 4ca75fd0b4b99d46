"""The command line of the profiler."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cotenant.command_groups import ListedGroup
from cotenant.command_run import HELP
from cotenant.counted_nouns import agreed
from cotenant.profile_schema import ProfileSchemaError
from cotenant_profiler import zoo
from cotenant_profiler.calibrate_command import calibrate_command
from cotenant_profiler.campaign import read_campaign
from cotenant_profiler.campaign_run import Listener, open_device, run_campaign
from cotenant_profiler.convert_command import convert_command
from cotenant_profiler.dataset import write_dataset
from cotenant_profiler.device_facts import describe_device
from cotenant_profiler.journal import Record, read_journal
from cotenant_profiler.mps import MpsDaemon
from cotenant_profiler.mps_probe import WorkersOnGpu, prove_mps
from cotenant_profiler.plan import build_plan
from cotenant_profiler.summary import Summary, summarize
from cotenant_profiler.zoo.export import export_graph

EXIT_INCOMPLETE = 3
CampaignPath = click.Path(path_type=Path, dir_okay=False)
FolderPath = click.Path(path_type=Path, file_okay=False)


@click.group(cls=ListedGroup, context_settings=HELP)
def main() -> None:
    """Measure training jobs alone and co-located."""


main.add_command(calibrate_command)
main.add_command(convert_command)


@main.command(epilog="Example:  cotenant profile plan profiling/campaigns/small.toml")
@click.argument("campaign", type=CampaignPath)
def plan(campaign: Path) -> None:
    """List the runs of CAMPAIGN in order, with their estimated cost."""
    runs = build_plan(read_campaign(campaign))
    for run in runs:
        click.echo(f"{run.run_id}  {run.cost_ms / 1000:4.1f} s  {run.label}")
    minutes = sum(run.cost_ms for run in runs) / 60_000
    click.echo(agreed(f"{len(runs)} run(s), about {minutes:.0f} minute(s)"), err=True)


@main.command(epilog="Example:  cotenant profile run profiling/campaigns/small.toml --out results")
@click.argument("campaign", type=CampaignPath)
@click.option("--out", type=FolderPath, required=True, help="Results folder; continued when it has results.")
@click.option("--deadline-s", type=click.IntRange(min=1), help="Begin no run that would end later than this from now.")
@click.option("--raise-weight/--keep-weight", default=True, help="Try to hold the device core by a control group.")
def run(campaign: Path, out: Path, deadline_s: int | None, raise_weight: bool) -> None:
    """Carry out what the results in --out lack of CAMPAIGN.

    Exit codes: 0 every run was measured or given up, 3 the deadline came first (run it again), 1 an error.
    """
    loaded = read_campaign(campaign)
    runs = build_plan(loaded)
    # A plain SIGTERM would leave workers and control group behind; an exception passes through all that closes them.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    deadline_ms = None if deadline_s is None else deadline_s * 1_000
    with _progress(len(runs)) as listener:
        journal = run_campaign(loaded, out, deadline_ms=deadline_ms, raise_weight=raise_weight, listener=listener)
    unfinished = sum(not journal.is_finished(item) for item in runs)
    measured = sum(journal.is_measured(item) for item in runs)
    click.echo(f"device: {journal.header['held_by']}; {measured} of {len(runs)} runs measured", err=True)
    _show(summarize(journal.records))
    if given_up := len(runs) - unfinished - measured:
        click.echo(_given_up(given_up), err=True)
    if unfinished:
        click.echo("the same command goes on where this one stopped; foreign load = others used the device", err=True)
        sys.exit(EXIT_INCOMPLETE)


@main.command(epilog="Example:  cotenant profile probe nvidia:0")
@click.argument("device")
@click.option(
    "--mps", "with_mps", is_flag=True, help="Prove by small kernels whether the multi-process service shares."
)
def probe(device: str, with_mps: bool) -> None:
    """Print what can be measured on DEVICE (cpu-standin, nvidia:0, nvidia:GPU-<uuid>), as JSON."""
    with open_device(device) as opened:
        facts = describe_device(opened)
        if with_mps:
            with MpsDaemon() as daemon:
                facts["mps"] = prove_mps(WorkersOnGpu(opened.place), daemon).facts()
        click.echo(json.dumps(facts, indent=2))


@main.command(epilog="Example:  cotenant profile status results")
@click.argument("folder", type=FolderPath)
def status(folder: Path) -> None:
    """Show the results in FOLDER and how reliable they are."""
    _show(summarize(read_journal(folder).records))


@main.command(epilog="Example:  cotenant profile dataset CAMPAIGN --out results --to FOLDER")
@click.argument("campaign", type=CampaignPath)
@click.option("--out", type=FolderPath, required=True, help="Results folder of the campaign.")
@click.option("--to", type=FolderPath, required=True, help="Folder of the dataset.")
def dataset(campaign: Path, out: Path, to: Path) -> None:
    """Write solo.csv, pairs.csv and the graphs of the measured jobs."""
    drift_ratio_max = read_campaign(campaign).method.anchor_drift_ratio_max
    to.mkdir(parents=True, exist_ok=True)
    solo, pairs = write_dataset(read_journal(out), to, drift_ratio_max)
    click.echo(f"{solo} solo rows and {pairs} pair rows in {to}")


@main.command(epilog="Example:  cotenant profile report FOLDER -o report.html")
@click.argument("dataset", type=FolderPath)
@click.option("-o", "--output", type=CampaignPath, required=True, help="The HTML page; needs no network to be read.")
def report(dataset: Path, output: Path) -> None:
    """Draw the measurements of the dataset folder DATASET: utilization, slowdown, noise, an additive prediction."""
    # Drawing takes a second to import, which the other commands need not pay.
    from cotenant_profiler.report import facts, write_report

    try:
        devices = write_report(dataset, output)
    except (OSError, ProfileSchemaError) as error:
        raise click.ClickException(str(error)) from error
    for figures in devices:
        click.echo(f"{figures.device}, campaign {figures.campaign}")
        for name, value in facts(figures):
            click.echo(f"  {name}: {value}")


@main.command(epilog="Example:  cotenant profile export FOLDER")
@click.argument("folder", type=FolderPath)
@click.option("--architecture", "chosen", multiple=True, help="Only these; may be repeated.")
def export(folder: Path, chosen: tuple[str, ...]) -> None:
    """Write the graph of every architecture of the zoo to FOLDER, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in chosen or zoo.names():
        graph = export_graph(name)
        (folder / f"{name}.onnx").write_bytes(graph.content)
        click.echo(f"{graph.sha256}  {name}.onnx")


@contextmanager
def _progress(total: int) -> Iterator[Listener]:
    """Show progress on standard error: a bar with the time left on a terminal, else a line per run."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda record: click.echo(progress_line(record), err=True)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)

        def show(record: Record) -> None:
            progress.update(task, advance=record.status == "ok", description=progress_line(record))

        yield show


def _given_up(count: int) -> str:
    runs = "1 run was" if count == 1 else f"{count} runs were"
    return (
        f"{runs} given up: no attempt was accepted (the lines above say why; foreign load = others used the device)\n"
        "  remedy: measure again with another --out while nothing else runs here"
    )


def progress_line(record: Record) -> str:
    """Return what a person reads of an attempt: what it was, and why it counts or does not."""
    jobs = " + ".join(job.name for job in record.jobs)
    load = f"foreign load {record.foreign_ratio:.1%}, elsewhere {record.elsewhere_ratio:.0%}"
    reasons = ", ".join(record.flags) if record.status == "rejected" else ""
    return f"{record.status} {record.kind} {jobs} ({record.error or '; '.join(filter(None, (reasons, load)))})"


def _show(summary: Summary) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("job", "runs", "step ms", "varies by", "utilization", "memory MiB"):
        table.add_column(heading, justify="left" if heading == "job" else "right")
    for item in summary.jobs:
        table.add_row(
            item.job.name,
            str(item.runs),
            f"{item.step_ms:.2f}",
            _percent(item.step_variation_ratio),
            f"{item.utilization_ratio:.3f}",
            "-" if item.memory_bytes is None else f"{item.memory_bytes / 2**20:.0f}",
        )
    Console().print(table)
    click.echo(
        f"accepted {summary.accepted} of {summary.attempts} attempts ({_percent(summary.accepted_ratio)}), "
        f"{summary.failed} failed\n"
        f"{summary.victims} rows of co-located jobs, mean slowdown {_number(summary.slowdown_mean)}\n"
        f"noise floor: standard deviation of a repeated slowdown {_number(summary.repeat_deviation_median)} (median), "
        f"{_number(summary.repeat_deviation_max)} (largest)\n"
        f"correlation of summed utilization and slowdown {_number(summary.load_correlation)}\n"
        f"anchor job deviates by {_percent(summary.anchor_deviation_max)} at most"
    )


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
