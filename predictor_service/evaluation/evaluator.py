"""The use case: score a model on measured rows by a fold rule. The command line calls it, and so may a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from predictor_service.errors import TrainingDataError
from predictor_service.evaluation.evaluation_limits import EvaluationLimits
from predictor_service.evaluation.fresh_model import FittingMethod
from predictor_service.evaluation.leakage import remove_leaks
from predictor_service.evaluation.report import Evaluation, evaluate_predictions
from predictor_service.evaluation.scoring import Round, Tell, plan_rounds, predict_rounds
from predictor_service.evaluation.splits import FOLDS_MAX, NO_FOLDS
from predictor_service.evaluation.stored_model import StoredModel, device_of
from predictor_service.learning.failed_runs import leave_out_failed_runs
from predictor_service.learning.learning_task import ALL_DEVICES, LearningTask
from predictor_service.learning.learning_task_reader import (
    ReadLearningTask,
    list_campaigns,
    list_devices,
    read_learning_task,
)
from predictor_service.learning.profile_files import MeasuredProfiles, read_profiles
from predictor_service.registry.manifest import hash_group
from predictor_service.registry.served_version import ServedVersion
from predictor_service.selection.targets import SLOWDOWN, Target

ROWS_MIN: Final = 2
_RESAMPLED_GROUPS_MIN: Final = 5
_MOST: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationQuestion:
    """What is to be scored.

    Attributes:
        target: What is predicted.
        fold_rule: One of `learning_task.LEVELS`, or `splits.NO_FOLDS`.
        data: File or folder; None where `test` is given.
        train: Rows to learn from, with the rule none.
        test: Rows to predict, with the rule none.
        device: Device type; empty = the only one that the rows have.
        campaign: None = all.
        folds: Most splits; None = the rule's own number.
        group_by: Groups that are reported one by one; empty = those that are held out.
        seed: Of everything drawn.
        version: A stored version to score; None = learn anew.
        limits: What it may cost.
    """

    target: Target
    fold_rule: str
    data: Path | None = None
    train: Path | None = None
    test: Path | None = None
    device: str = ""
    campaign: str | None = None
    folds: int | None = None
    group_by: str = ""
    seed: int = 0
    version: ServedVersion | None = None
    limits: EvaluationLimits = field(default_factory=EvaluationLimits)


def evaluate(question: EvaluationQuestion, tell: Tell) -> Evaluation:
    """Scores a model.

    Args:
        question: See there.
        tell: Receives the progress and what a reader should know, one line each.

    Raises:
        TrainingDataError: The rows cannot be read, or not be scored by the rule asked for.
    """
    # Many small products: several threads for each take six times the processor time, and their sums differ.
    with threadpool_limits(1):
        return _evaluate(question, tell)


def _evaluate(question: EvaluationQuestion, tell: Tell) -> Evaluation:
    is_over = question.limits.start()
    if question.fold_rule == NO_FOLDS:
        return _evaluate_without_folds(question, tell)
    if question.data is None or question.train or question.test:
        raise TrainingDataError(
            f"--fold {question.fold_rule} splits one file", remedy="name it, or use --fold none with --train and --test"
        )
    read = _read(question, question.data, tell)
    learning_task, excluded = read.learning_task, Counter(read.excluded)
    stored = _stored(question, learning_task.device)
    if stored is not None:
        learning_task = _keep_answerable(stored, learning_task, excluded)
        learning_task = _drop_seen(stored.version, learning_task, question.fold_rule, excluded)
    learning_task = question.limits.thin(learning_task, question.seed, excluded)
    _check_rows(learning_task, excluded, ROWS_MIN, question.data)
    folds = question.folds or FOLDS_MAX[question.fold_rule]
    rounds = plan_rounds(learning_task, question.fold_rule, folds, question.seed)
    method = stored or FittingMethod(question.fold_rule)
    predictions = predict_rounds(rounds, method, question.fold_rule, question.seed, tell, is_over)
    question.limits.note_unpredicted(len(learning_task) - len(set(predictions.rows.tolist())), excluded)
    group_by = question.group_by or ("family" if question.fold_rule == "random_pair" else question.fold_rule)
    return evaluate_predictions(
        learning_task,
        predictions,
        fold_rule=question.fold_rule,
        level=question.fold_rule,
        group_by=group_by,
        excluded=dict(excluded),
        seed=question.seed,
    )


def _evaluate_without_folds(question: EvaluationQuestion, tell: Tell) -> Evaluation:
    path = question.test or question.data
    if path is None:
        raise TrainingDataError("there is nothing to predict", remedy="name a file, or give --test")
    if question.version is None and question.train is None:
        raise TrainingDataError(
            "--fold none with a fresh model needs rows to learn from",
            remedy="give --train, choose another --fold, or score a stored model with --model current",
        )
    read = _read(question, path, tell)
    test, excluded = read.learning_task, Counter(read.excluded)
    train = None if question.train is None else _read(question, question.train, tell).learning_task
    if train is not None:
        left_out = Counter[str]()
        train = question.limits.thin(train, question.seed, left_out)
        for reason, count in left_out.items():
            tell(f"not learned from: {count} rows {reason}")
        _check_rows(train, Counter(), ROWS_MIN, question.train)
        test = _drop_repeated(train, test, excluded, tell)
    stored = _stored(question, test.device)
    if stored is not None:
        test = _keep_answerable(stored, test, excluded)
        _tell_seen(stored.version, test, tell)
    test = question.limits.thin(test, question.seed, excluded)
    _check_rows(test, excluded, 1, path)
    unseen = "family" if train is None else _unseen_level(train, test)
    if stored is None:
        tell(f"rows to predict differ from those to learn from by {unseen}: the method chooses for that")
    method = stored or FittingMethod(unseen)
    rounds = [Round(train, test, np.arange(len(test)))]
    level = _coarsest_level(test)
    predictions = predict_rounds(rounds, method, level, question.seed, tell)
    return evaluate_predictions(
        test,
        predictions,
        fold_rule=NO_FOLDS,
        level=level,
        group_by=question.group_by or level,
        excluded=dict(excluded),
        seed=question.seed,
    )


def _read(question: EvaluationQuestion, path: Path, tell: Tell) -> ReadLearningTask:
    profiles = read_profiles(path)
    device = ALL_DEVICES if question.fold_rule == "device" else question.device
    device = _choose_device(profiles, question.target, device)
    campaigns = list_campaigns(profiles, question.target, device)
    if question.campaign is not None and question.campaign not in campaigns:
        raise TrainingDataError(
            f"{profiles.name} has no campaign {question.campaign!r} on {device}",
            remedy=f"it has: {', '.join(campaigns)}",
        )
    if len(campaigns) > 1 and question.campaign is None:
        tell(f"{profiles.name}: {len(campaigns)} campaigns together ({', '.join(campaigns)}); --campaign chooses one")
    read = read_learning_task(profiles, question.target, device, question.campaign)
    learning_task, leaks = remove_leaks(read.learning_task)
    if leaks:
        tell(f"{profiles.name}: not used, the measured value is an exact line of them: {', '.join(leaks)}")
    excluded = Counter(read.excluded)
    learning_task = leave_out_failed_runs(learning_task, excluded)
    return ReadLearningTask(learning_task=learning_task.in_content_order(), excluded=dict(excluded))


def _choose_device(profiles: MeasuredProfiles, target: Target, asked: str) -> str:
    known = list_devices(profiles, target)
    if not known:
        rows = "pairs" if target is SLOWDOWN else "solo rows"
        raise TrainingDataError(
            f"{profiles.name} has no {rows} with a measured {target.quantity}",
            remedy="score another --target, or measure it",
        )
    if asked.lower() == ALL_DEVICES or (not asked and len(known) == 1):
        return known[0] if len(known) == 1 and asked.lower() != ALL_DEVICES else ALL_DEVICES
    if not asked:
        raise TrainingDataError(
            f"{profiles.name} has {len(known)} device types", remedy=f"choose --device all or one of {', '.join(known)}"
        )
    exact = [name for name in known if name.lower() == asked.lower()]
    matches = exact or [name for name in known if asked.lower() in name.lower()]
    if len(matches) == 1:
        return matches[0]
    like = f"{len(matches)} device types like {asked!r}"
    found = like if matches else f"no {target.quantity} of device type {asked!r}"
    raise TrainingDataError(f"{profiles.name} has {found}", remedy=f"choose one of {', '.join(matches or known)}")


def _check_rows(learning_task: LearningTask, excluded: Mapping[str, int], least: int, path: Path | None) -> None:
    if len(learning_task) >= least:
        return
    reasons = "; ".join(f"{count} rows: {reason}" for reason, count in excluded.items()) or "there are no others"
    raise TrainingDataError(
        f"{path} has {len(learning_task)} usable rows of {learning_task.target.quantity} on {learning_task.device}, "
        f"at least {least} are needed",
        remedy=f"left out: {reasons}",
    )


def _stored(question: EvaluationQuestion, device: str) -> StoredModel | None:
    if question.version is None:
        return None
    return StoredModel(question.version, question.target, device_of(question.version, device))


def _keep(learning_task: LearningTask, keep: list[int]) -> LearningTask:
    return learning_task if len(keep) == len(learning_task) else learning_task.subset(keep)


def _keep_answerable(stored: StoredModel, learning_task: LearningTask, excluded: Counter[str]) -> LearningTask:
    reasons = [stored.refuse(job, others) for job, others in zip(learning_task.jobs, learning_task.others, strict=True)]
    excluded.update(reason for reason in reasons if reason)
    return _keep(learning_task, [row for row, reason in enumerate(reasons) if not reason])


def _seen_rows(version: ServedVersion, learning_task: LearningTask, level: str) -> list[bool]:
    seen = frozenset(version.manifest.seen.get(level, ()))
    return [any(hash_group(name) in seen for name in names) for names in learning_task.groups(level)]


def _drop_seen(version: ServedVersion, learning_task: LearningTask, level: str, excluded: Counter[str]) -> LearningTask:
    """A group that the version was trained on is no test of it."""
    seen = _seen_rows(version, learning_task, level)
    if any(seen):
        excluded[f"{level} seen in the training of {version.version}"] += sum(seen)
    return _keep(learning_task, [row for row, is_seen in enumerate(seen) if not is_seen])


def _tell_seen(version: ServedVersion, learning_task: LearningTask, tell: Tell) -> None:
    seen = sum(_seen_rows(version, learning_task, "job"))
    if seen:
        tell(
            f"{seen} of {len(learning_task)} rows are of jobs that version {version.version} was trained on: flattering"
        )


def _drop_repeated(train: LearningTask, test: LearningTask, excluded: Counter[str], tell: Tell) -> LearningTask:
    """A row that was learned from is no test; a job that was learned from is one, but an easy one."""
    known = {(run, job.job_key, job.device) for run, job in zip(train.row_ids, train.jobs, strict=True)}
    rows = [(run, job.job_key, job.device) for run, job in zip(test.row_ids, test.jobs, strict=True)]
    repeated = sum(row in known for row in rows)
    if repeated:
        excluded["also among the rows to learn from"] += repeated
    test = _keep(test, [place for place, row in enumerate(rows) if row not in known])
    jobs = frozenset[str]().union(*train.groups("job"))
    seen = sum(bool(names & jobs) for names in test.groups("job"))
    if seen:
        tell(f"{seen} of {len(test)} rows to predict have a job that is among the rows to learn from")
    return test


def _unseen_level(train: LearningTask, test: LearningTask) -> str:
    """The coarsest level at which most rows to predict have a group that is not among the rows to learn from."""
    for level in ("device", "family", "architecture", "job"):
        known = frozenset[str]().union(*train.groups(level))
        unseen = sum(not names <= known for names in test.groups(level))
        if unseen > _MOST * len(test):
            return level
    return "random_pair"


def _coarsest_level(learning_task: LearningTask) -> str:
    for level in ("family", "architecture"):
        if len(frozenset[str]().union(*learning_task.groups(level))) >= _RESAMPLED_GROUPS_MIN:
            return level
    return "job"
