"""Memory that is served after an import, and the same rows learned by `evaluate --model fresh`, as JSON.

The rows of timm models on an A100 are taken from datasets/public/gpumemnet. Every fourth network, then every fourth
family, is held out by the hash of its name; the others are learned as `retrain` learns a user's import, but without
the models that come with the program, which the held-out rows have taught. That version is asked about these by
`evaluate --model VERSION`; `--model fresh` learns the same rows by the same function, with the groups that are unseen
held out inside them. XGBoost on the table's columns is the baseline of both. One model in COTENANT_BENCHMARK_EVERY
(default 1) takes part. With --served-only the fresh model, minutes of work, is left out.

Runs that failed are neither learned from nor judged (`learning/failed_runs.py`). The rows of the stored version are
also told apart by the domain flag.

With --cnn instead: each of the seven kinds of generated CNNs is held out in turn, the rest of the whole set is learned
as `retrain` does. Three CPU minutes a kind; --kinds dense,gradual judges some.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from cotenant.profile_schema import PairRow, SoloRow, read_rows, write_rows
from predictor_service.evaluation.evaluator import EvaluationQuestion, evaluate
from predictor_service.evaluation.report import Evaluation
from predictor_service.evaluation.stored_model import StoredModel
from predictor_service.fitting.fit import fit_rows
from predictor_service.fitting.known_rows import split_learnable
from predictor_service.fitting.learnable_rows import select_learnable
from predictor_service.learning.failed_runs import find_failed_runs
from predictor_service.learning.learning_task import BoolArray, FloatArray
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import read_profiles
from predictor_service.registry.served_version import ServedVersion
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.training import train
from predictor_service.selection.targets import MEMORY
from predictor_service.settings import default_datasets_dir

_SET: Final = "gpumemnet"
_DEVICE: Final = "NVIDIA A100-SXM4-40GB"
_CAMPAIGN: Final = "timm"
_EVERY: Final = 4
_LEVELS: Final[dict[str, Callable[[SoloRow], str]]] = {
    "architecture": lambda row: row.architecture,
    "family": lambda row: row.family,
}
_CNN: Final = "cnn"
_METRICS: Final = ("mape_ratio", "coverage_90_ratio", "coverage_99_ratio", "upper_99_over_actual_mean")


class UnknownKindError(ValueError):
    """No generated CNN is of a kind that was asked for."""


def main(*, served_only: bool = False) -> dict[str, Any]:
    """Returns the error of served and of fresh models on held-out networks and families."""
    every = int(os.environ.get("COTENANT_BENCHMARK_EVERY", "1"))
    folder = default_datasets_dir() / "public" / _SET
    rows = [row for row in read_rows(folder / "solo.csv.gz", SoloRow) if row.campaign == _CAMPAIGN]
    rows = [row for row in rows if _hash(row.architecture) % every == 0]
    return {f"{level} never seen": _judge(rows, level, served_only=served_only) for level in _LEVELS}


def judge_cnns(kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Returns how often the bound holds for kinds of CNNs that were not learned from, and over all of them."""
    profiles = read_profiles(default_datasets_dir() / "public" / _SET)
    rows = read_learning_task(profiles, MEMORY, _DEVICE).learning_task
    is_cnn = [job.labels.get("campaign") == _CNN for job in rows.jobs]
    names = choose_kinds({job.architecture for job, chosen in zip(rows.jobs, is_cnn, strict=True) if chosen}, kinds)
    judged, held, ratios = {}, list[bool](), list[float]()
    with threadpool_limits(1):
        for name in names:
            _tell(f"without {name}")
            unseen = np.array([job.architecture == name for job in rows.jobs])
            fitted = fit_rows(select_learnable(rows.subset(np.flatnonzero(~unseen))).learned, "family", 0)
            test, _ = split_learnable(rows.subset(np.flatnonzero(unseen)))
            answered = fitted.predict(test)
            judged[name] = _cnn_figures(answered.value, answered.upper_99, test.measured, answered.in_domain)
            held += (test.measured <= answered.upper_99).tolist()
            ratios += (answered.upper_99 / test.measured).tolist()
            _tell(json.dumps(judged[name]))
    return {
        **judged,
        "all": {"rows": len(held), "coverage_99_ratio": np.mean(held), "upper_99_over_actual_mean": np.mean(ratios)},
    }


def choose_kinds(architectures: Iterable[str], kinds: Sequence[str]) -> list[str]:
    """Architectures of the kinds that were asked for, sorted; of none all.

    Raises:
        UnknownKindError: Names it and those that are known.
    """
    known = {name.removeprefix(f"{_CNN}_"): name for name in architectures}
    if unknown := sorted(set(kinds) - known.keys()):
        raise UnknownKindError(f"no kind {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    return sorted(known[kind] for kind in kinds or known)


def _cnn_figures(value: FloatArray, upper_99: FloatArray, measured: FloatArray, in_domain: BoolArray) -> dict[str, Any]:
    return {
        "rows": len(measured),
        "mape_ratio": float(np.mean(np.abs(value / measured - 1))),
        "coverage_99_ratio": float(np.mean(measured <= upper_99)),
        "upper_99_over_actual_mean": float(np.mean(upper_99 / measured)),
        "flagged_ratio": float(np.mean(~in_domain)),
    }


def _judge(rows: list[SoloRow], level: str, *, served_only: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        test = [row for row in rows if _hash(_LEVELS[level](row), "held out") % _EVERY == 0]
        chosen = frozenset(row.run_id for row in test)
        _write(root / "train" / "set", [row for row in rows if row.run_id not in chosen])
        _write(root / "test" / "set", test)
        _tell(f"learning, for {level} never seen")
        version = learn(root / "train", root / "models")
        served = _figures(_ask(root, level, version, data=root / "test" / "set"))
        judged = {"served": served, "served_of_runs_that_worked": _judge_working(version, root / "test" / "set")}
        if served_only:
            return judged
        fresh = _ask(root, "none", None, train=root / "train" / "set", test=root / "test" / "set")
        return {**judged, "fresh": _figures(fresh)}


def _judge_working(version: ServedVersion, folder: Path) -> dict[str, Any]:
    """Figures of the rows of runs that worked, in all and by the domain flag."""
    device = next(iter(version.devices))
    learning_task = read_learning_task(read_profiles(folder), MEMORY, device).learning_task
    known, _ = split_learnable(learning_task)
    known = known.subset(np.flatnonzero(~find_failed_runs(known)))
    answered, measured = StoredModel(version, MEMORY, device).predict(known), known.measured
    networks = [job.architecture for job in known.jobs]

    def figures(chosen: BoolArray) -> dict[str, Any]:
        if not chosen.any():
            return {"rows": 0}
        value, upper = answered.value[chosen], answered.upper_99[chosen]
        held, lower_90, upper_90 = measured[chosen], answered.lower_90[chosen], answered.upper_90[chosen]
        return {
            "rows": int(chosen.sum()),
            "mape_ratio": float(np.mean(np.abs(value / held - 1))),
            "coverage_90_ratio": float(np.mean((lower_90 <= held) & (held <= upper_90))),
            "coverage_99_ratio": float(np.mean(held <= upper)),
            "upper_99_over_actual_mean": float(np.mean(upper / held)),
            "upper_99_over_actual_median": float(np.median(upper / held)),
        }

    flagged = ~answered.in_domain
    by_network = {
        name: [flag for flag, other in zip(flagged, networks, strict=True) if other == name] for name in networks
    }
    return {
        **figures(np.ones(len(known), dtype=np.bool_)),
        "flagged_networks_ratio": float(np.mean([np.mean(flags) for flags in by_network.values()])),
        "flagged": figures(flagged),
        "not_flagged": figures(~flagged),
    }


def _write(folder: Path, rows: list[SoloRow]) -> None:
    folder.mkdir(parents=True)
    write_rows(folder / "solo.csv.gz", rows, SoloRow)
    write_rows(folder / "pairs.csv.gz", [], PairRow)


def learn(datasets: Path, models: Path) -> ServedVersion:
    """Learns data sets as `retrain` does and nothing else: models that come with the program were taught judged rows.

    Args:
        datasets: Folder of data sets.
        models: Folder that is used meanwhile.
    """
    store = VersionStore(models)
    version = store.load(train(datasets, store, 0))
    shutil.rmtree(models)
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--served-only", action="store_true", help="Leave the fresh model out.")
    parser.add_argument("--cnn", action="store_true", help="Judge kinds of generated CNNs instead.")
    parser.add_argument("--kinds", default="", help="Of --cnn: these only, joined by commas.")
    asked = parser.parse_args()
    if asked.kinds and not asked.cnn:
        parser.error("--kinds are kinds of generated CNNs: give --cnn as well")
    try:
        found = (
            judge_cnns([*filter(None, asked.kinds.split(","))]) if asked.cnn else main(served_only=asked.served_only)
        )
    except UnknownKindError as error:
        parser.error(str(error))
    print(json.dumps(found, indent=1))
