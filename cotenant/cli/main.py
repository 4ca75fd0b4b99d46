"""The `cotenant` command: names of the verbs, errors to one line and an exit status."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import MappingProxyType

import click

from cotenant import __version__
from cotenant.cli.exit_codes import EXIT_CODES_HELP, exit_code_of
from cotenant.cli.session import tell_error
from cotenant.cli.verb_habits import FLAGS, HABITS
from cotenant.client_errors import CotenantError
from cotenant.command_run import HELP, run_command
from cotenant.nearest_name import did_you_mean

# Verb -> module and attribute. Loaded when used, so that completion and --help stay fast.
VERBS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "up": ("up_command", "up", "Start predictor, scheduler and agent on this machine."),
        "demo": ("demo_command", "demo", "Watch real jobs share two devices, with a crash in the middle."),
        "submit": ("submit_command", "submit", "Hand a job in."),
        "ps": ("job_commands", "ps", "List jobs, with the reason where they wait. (alias: ls)"),
        "describe": ("job_commands", "describe", "Show everything about one job."),
        "explain": ("explain_command", "explain", "Explain why a job runs where it does, or waits."),
        "logs": ("log_commands", "logs", "Print what a job printed."),
        "wait": ("wait_command", "wait", "Wait until jobs have ended; exit 7 or 8 if one did not finish."),
        "cancel": ("job_commands", "cancel", "Stop jobs; repeating it is harmless."),
        "hold": ("queue_commands", "hold", "Let pending jobs wait until they are released."),
        "release": ("queue_commands", "release", "Let held jobs start."),
        "alter": ("queue_commands", "alter", "Change what a pending job asks for."),
        "retry": ("queue_commands", "retry", "Hand failed or cancelled jobs in again."),
        "pause": ("job_commands", "pause", "Let jobs stand still for a minute at most."),
        "resume": ("job_commands", "resume", "Let paused jobs go on."),
        "predict": ("predict_command", "predict", "Predict memory, utilization and step time of a graph."),
        "capture": ("capture_command", "capture", "Read graph and settings off an untouched PyTorch script."),
        "pairs": ("pairs_command", "pairs", "List which jobs harm each other, as measured here."),
        "convergence": ("convergence_command", "convergence", "Predict when training ends, and speeds elsewhere."),
        "calibrate": ("program_commands", "calibrate", "Measure the device at hand, for predictions about it."),
        "nodes": ("node_commands", "nodes", "List machines; cordon, drain or give one up."),
        "gpus": ("node_commands", "gpus", "List GPUs and what they hold."),
        "policies": ("policy_commands", "policies", "List, describe and choose scheduling policies."),
        "doctor": ("doctor_command", "doctor", "Check this installation and what it can reach."),
        "backup": ("program_commands", "backup", "Back the scheduler's state up."),
        "restore": ("program_commands", "restore", "Restore the scheduler's state."),
        "export-log": ("program_commands", "export_log", "Write the scheduler's event log as JSON lines."),
        "log": ("program_commands", "log", "Verify the scheduler's event log, record by record."),
        "certs": ("certs_commands", "certs", "Make and renew certificates with roles, for mutual TLS."),
        "audit": ("program_commands", "audit", "Show who did what, from the scheduler's event log."),
        "engine": ("engine_command", "engine", "Advise or place jobs of Slurm, Kubernetes or Ray."),
        "observe": ("program_commands", "observe", "Measure what runs on this machine's devices, foreign jobs too."),
        "decide": ("program_commands", "decide", "Decide on a snapshot file of another cluster."),
        "shadow": ("program_commands", "shadow", "Report what sharing would have saved, from accounting."),
        "simulate": ("program_commands", "simulate", "Run a workload under policies in simulated time."),
        "evaluate": ("program_commands", "evaluate", "Score a model and baselines on measured rows."),
        "models": ("program_commands", "models", "List, show, compare, promote and roll back model versions."),
        "retrain": ("program_commands", "retrain", "Learn anew from what is there; serve it if not worse."),
        "profile": ("program_commands", "profile", "Measure jobs alone and co-located, and report."),
        "profiles": ("program_commands", "profiles", "List, export and forget what running jobs taught."),
        "datasets": ("program_commands", "datasets", "Import public measured sets, check dataset folders."),
        "config": ("config_commands", "config", "Show settings and where they come from."),
        "completion": ("config_commands", "completion", "Print the completion script of a shell."),
        "manual": ("config_commands", "manual", "Print the manual page, for man."),
        "version": ("config_commands", "version", "Print the version."),
    }
)
# The first verb of each topic of the help -> its heading.
TOPICS: Mapping[str, str] = MappingProxyType(
    {
        "up": "Jobs",
        "predict": "Predictions",
        "nodes": "Machines and the scheduler",
        "engine": "Other schedulers, and what would have been",
        "evaluate": "Models and measurements",
        "config": "This command",
    }
)
ALIASES: Mapping[str, str] = MappingProxyType({"ls": "ps", "queue": "ps", "status": "ps"})


class VerbGroup(click.Group):
    """Loads a verb's module when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the verb or its alias."""
        entry = VERBS.get(ALIASES.get(cmd_name, cmd_name))
        if entry is None:
            return None
        command = getattr(importlib.import_module(f"cotenant.cli.{entry[0]}"), entry[1])
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry[0]}.{entry[1]} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the verb; one of another tool is answered with what does it here, a misspelt one with the nearest."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near, habit = did_you_mean(args[0], list(VERBS)), HABITS.get(args[0])
            told = f"; here that is `{habit}`" if habit else f"; {near}" if near.startswith("did") else "."
            ctx.fail(f"No such command {args[0]!r}{told}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Runs the verb; a flag of another tool is answered with the one that does it here."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            verb = error.ctx.command.name if error.ctx is not None else None
            habit = FLAGS.get(verb or "", {}).get(error.option_name)
            if habit is None:
                raise
            told = f"{error.message.rstrip('.')}; here that is {habit}"
            raise click.NoSuchOption(error.option_name, told, ctx=error.ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the verbs by topic without loading their modules."""
        width = max(map(len, VERBS))
        topics: list[tuple[str, list[tuple[str, str]]]] = []
        for verb, (_, _, what) in VERBS.items():
            if verb in TOPICS:
                topics.append((TOPICS[verb], []))
            topics[-1][1].append((verb.ljust(width), what))
        for heading, rows in topics:
            with formatter.section(heading):
                formatter.write_dl(rows)


_HELP = """Predict what training jobs will need, and let them share GPUs.

\b
Try it:         cotenant demo
Will it fit?    cotenant predict --device a100 -- python SCRIPT.py
A cluster:      cotenant up
Run it there:   cotenant submit -- python SCRIPT.py   (another terminal)
Why not yet?    cotenant explain JOB
What is wrong?  cotenant doctor

Settings: flags, then COTENANT_* variables, then $XDG_CONFIG_HOME/cotenant/config.toml, then defaults
(`cotenant config view`). Data goes to stdout, everything else to stderr.
"""


@click.group(
    cls=VerbGroup,
    help=_HELP,
    epilog=EXIT_CODES_HELP,
    context_settings=HELP,
)
@click.version_option(__version__, prog_name="cotenant")
def cotenant() -> None:
    """Chooses the verb."""


def main() -> None:
    """Runs the command and ends the process with the documented exit status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs the command and returns its exit status; never lets a traceback of an expected error out."""
    try:
        return run_command(cotenant, arguments, prog_name="cotenant")
    except CotenantError as error:
        tell_error(error)
        return exit_code_of(error)
