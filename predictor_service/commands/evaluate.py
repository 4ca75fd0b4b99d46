"""evaluate: score the served model, a stored one or a fresh one on measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cotenant.structured_log import start_logging
from predictor_service.errors import TrainingDataError
from predictor_service.registry.version_store import VersionStore
from predictor_service.settings import SETTINGS, Settings

if TYPE_CHECKING:
    from predictor_service.registry.served_version import ServedVersion

_PATH: Final = click.Path(path_type=Path)
_TARGETS: Final = ("utilization", "sm_activity", "memory", "step_time", "slowdown")
_LEVELS: Final = ("random_pair", "job", "architecture", "family", "device")


@click.command("evaluate", epilog="Example:  cotenant evaluate FOLDER --target memory --fold family --model fresh")
@click.argument("data", type=_PATH, required=False)
@click.option("--target", type=click.Choice(_TARGETS), required=True)
@click.option("--device", default="", help="Device type, or all; may be left out when the rows have one only.")
@click.option(
    "--fold",
    type=click.Choice([*_LEVELS, "none"]),
    default="family",
    show_default=True,
    help="What is held out together; none: --train and --test are given.",
)
@click.option("--model", default="fresh", show_default=True, help="current, fresh, or the folder of a version.")
@click.option("--train", type=_PATH, help="Rows to learn from, with --fold none.")
@click.option("--test", type=_PATH, help="Rows to predict, with --fold none.")
@click.option("--campaign", help="Rows of one campaign only.")
@click.option("--folds", type=click.IntRange(2, 1000), help="Most splits; fewer groups are left out one by one.")
@click.option(
    "--per-group",
    "group_by",
    type=click.Choice([*_LEVELS, "size_decile"]),
    help="Groups reported one by one; those that are held out by default.",
)
@click.option("--rows-max", type=click.IntRange(2), default=20_000, show_default=True, help="Of more, draw so many.")
@click.option(
    "--time-limit-s",
    type=click.IntRange(1),
    default=7_200,
    show_default=True,
    help="Begin no split later than this; the report counts the rows that were not predicted.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@SETTINGS.options("state_dir")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def evaluate_command(
    *,
    data: Path | None,
    model: str,
    settings: Settings,
    output: str,
    target: str,
    fold: str,
    rows_max: int,
    time_limit_s: int,
    **flags: Any,  # noqa: ANN401 (click hands over what was declared)
) -> None:
    """Score a model on DATA, a data-set folder or one CSV or Parquet file in the profile schema.

    Baselines run on the same rows and splits. Progress goes to stderr, the report to stdout.
    """
    named = " and ".join(str(path) for path in (data, flags["train"], flags["test"]) if path is not None)
    click.echo(f"reading {named or 'nothing'}: up to a minute or two where there are graphs", err=True)
    # Imported here: what learns takes seconds to load.
    from predictor_service.evaluation.evaluation_limits import EvaluationLimits
    from predictor_service.evaluation.evaluator import EvaluationQuestion, evaluate
    from predictor_service.evaluation.report import as_json, as_table
    from predictor_service.selection.targets import TARGETS_BY_QUANTITY

    start_logging("predictor", "error")
    version = _version(model, settings.state_dir)
    flags["group_by"] = flags["group_by"] or ""
    question = EvaluationQuestion(
        target=TARGETS_BY_QUANTITY[target],
        fold_rule=fold,
        data=data,
        version=version,
        limits=EvaluationLimits(rows_max=rows_max, time_limit_s=time_limit_s),
        **flags,
    )
    evaluation = evaluate(question, lambda line: click.echo(line, err=True))
    click.echo(as_json(evaluation) if output == "json" else as_table(evaluation))


def _version(model: str, state_dir: Path) -> ServedVersion | None:
    """The stored version that a --model names; None for a fresh one."""
    if model == "fresh":
        return None
    if model != "current":
        folder = Path(model)
        if not (folder / "manifest.json").is_file():
            raise TrainingDataError(
                f"{folder} is no stored version", remedy="give current, fresh, or a folder with manifest.json"
            )
        return VersionStore(folder.resolve().parent.parent).load(folder.resolve().name)
    store = VersionStore(state_dir / "models")
    name = store.current()
    if name is None:
        raise TrainingDataError(
            f"{state_dir} has no model yet", remedy="train one with `cotenant retrain`, or use --model fresh"
        )
    return store.load(name)
