"""Memory that is served after an import, beside what `evaluate --model fresh` scores, as JSON.

The rows of timm models on an A100 are taken from datasets/public/gpumemnet. Every fourth network, then every fourth
family, is held out by the hash of its name; the others are learned by `retrain` as a user's import would be, and the
promoted version is asked about the held-out rows by `evaluate --model VERSION`; `--model fresh` learns and predicts the
same rows from all that the table publishes. XGBoost on the table's columns is the baseline of both. One model in
COTENANT_BENCHMARK_EVERY (default 1) takes part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cotenant.profile_schema import PairRow, SoloRow, read_rows, write_rows
from predictor_service.evaluation.evaluator import EvaluationQuestion, evaluate
from predictor_service.evaluation.report import Evaluation
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.served_version import ServedVersion
from predictor_service.retraining.retraining_run import RetrainingPlan, retrain
from predictor_service.selection.targets import MEMORY
from predictor_service.settings import default_datasets_dir

_SET: Final = "gpumemnet"
_CAMPAIGN: Final = "timm"
_EVERY: Final = 4
_LEVELS: Final[dict[str, Callable[[SoloRow], str]]] = {
    "architecture": lambda row: row.architecture,
    "family": lambda row: row.family,
}
_METRICS: Final = ("mape_ratio", "coverage_90_ratio", "coverage_99_ratio", "upper_99_over_actual_mean")


def main() -> dict[str, Any]:
    """Returns the error of served and of fresh models on held-out networks and families."""
    every = int(os.environ.get("COTENANT_BENCHMARK_EVERY", "1"))
    folder = default_datasets_dir() / "public" / _SET
    rows = [row for row in read_rows(folder / "solo.csv.gz", SoloRow) if row.campaign == _CAMPAIGN]
    rows = [row for row in rows if _hash(row.architecture) % every == 0]
    return {f"{level} never seen": _judge(rows, level) for level in _LEVELS}


def _judge(rows: list[SoloRow], level: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        test = [row for row in rows if _hash(_LEVELS[level](row), "held out") % _EVERY == 0]
        chosen = frozenset(row.run_id for row in test)
        _write(root / "train" / "set", [row for row in rows if row.run_id not in chosen])
        _write(root / "test" / "set", test)
        version = _served(root)
        fresh = _ask(root, "none", None, train=root / "train" / "set", test=root / "test" / "set")
        return {"served": _figures(_ask(root, level, version, data=root / "test" / "set")), "fresh": _figures(fresh)}


def _write(folder: Path, rows: list[SoloRow]) -> None:
    folder.mkdir(parents=True)
    write_rows(folder / "solo.csv.gz", rows, SoloRow)
    write_rows(folder / "pairs.csv.gz", [], PairRow)


def _served(root: Path) -> ServedVersion:
    registry = ModelRegistry(root / "state" / "models", "a benchmark")
    try:
        plan = RetrainingPlan(state_dir=root / "state", datasets=root / "train")
        version = registry.store.load(retrain(plan, registry, _tell).served)
    finally:
        registry.close()
    shutil.rmtree(root / "state")
    return version


def _ask(root: Path, fold_rule: str, version: ServedVersion | None, **paths: Path) -> Evaluation:
    return evaluate(EvaluationQuestion(target=MEMORY, fold_rule=fold_rule, version=version, **paths), _tell)  # type: ignore[arg-type]


def _figures(evaluation: Evaluation) -> dict[str, Any]:
    trees = evaluation.baselines["gradient_boosting"]
    return {
        "rows": evaluation.rows,
        **{name: evaluation.metrics.get(name) for name in _METRICS if name in evaluation.metrics},
        "baseline_mape_ratio": None if trees is None else trees.metrics.get("mape_ratio"),
    }


def _hash(*texts: str) -> int:
    return int(hashlib.sha256("/".join(texts).encode()).hexdigest(), 16)


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(main(), indent=1))
