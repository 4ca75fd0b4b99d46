"""Answers of the predictor's own models, or errors that they made: the one module here that knows the predictor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from cotenant.job_settings import JobSettings
from cotenant_simulator.errors import PredictionsError
from cotenant_simulator.truth.trace import Trace
from predictor_service.errors import PredictorError
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import Estimate, JobQuestion, PairJob, PairsQuestion
from predictor_service.registry.held_out import HeldOut, HeldOutRows
from predictor_service.registry.public_version import read_public_version
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore
from predictor_service.settings import default_datasets_dir, default_state_dir
from scheduler_service.core.commands import RequestPairPredictions, RequestPrediction
from scheduler_service.core.records import JobPrediction, Level, MemoryPoint, PairPrediction

STANDIN = "cpu-standin"
_LEVELS = {1: Level.OBSERVED, 2: Level.SOLO_KNOWN, 3: Level.GRAPH, 4: Level.FALLBACK}


class TrainedPredictor:
    """Answers the engine's questions from trained models.

    Args:
        predictor: The use case of the predictor.
    """

    is_per_job = False

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def job(self, question: RequestPrediction) -> JobPrediction | None:
        """Return the models' answer about a key, or None where they refuse."""
        settings = _settings(question.settings)
        try:
            answer = self._predictor.predict_job(
                JobQuestion(
                    settings=settings,
                    device=question.device,
                    graph_sha256=question.graph_sha256,
                    device_memory_bytes=question.device_memory_bytes,
                    micro_batch_sizes=question.micro_batch_sizes,
                )
            )
        except PredictorError:
            return None
        if answer.device_is_generic:
            return None
        memory = {point.micro_batch_size: _memory(point.memory_bytes) for point in answer.micro_batches}
        step_ms = {(1, point.micro_batch_size): point.step_ms.value for point in answer.micro_batches}
        memory[settings.global_batch_size] = _memory(answer.memory_bytes)
        step_ms[1, settings.global_batch_size] = answer.step_ms.value
        busy = answer.utilization_ratio
        return JobPrediction(
            key=question.key,
            device=question.device,
            utilization_ratio=busy.value,
            memory=memory,
            step_ms=step_ms,
            level=_LEVELS[max(int(busy.level), int(answer.memory_bytes.level))],
            in_domain=busy.in_domain and answer.memory_bytes.in_domain,
            model_version=answer.model_version,
        )

    def pairs(self, question: RequestPairPredictions) -> Sequence[PairPrediction]:
        """Return the models' answers about the pairs of a question; nothing where they refuse."""
        jobs = [
            PairJob(
                job_id=member.key,
                settings=_settings(member.settings),
                graph_sha256=member.graph_sha256,
                known_step_ms=member.solo_step_ms,
                known_utilization_ratio=member.utilization_ratio,
                known_memory_bytes=member.memory_bytes,
            )
            for member in question.members
            if not member.micro_batch_size
        ]
        try:
            answer = self._predictor.predict_pairs(
                PairsQuestion(device=question.device, jobs=jobs, device_memory_bytes=question.device_memory_bytes)
            )
        except PredictorError:
            return ()
        return [
            PairPrediction(
                victim_key=victim,
                other_key=other,
                device=question.device,
                slowdown_ratio=max(float(answer.slowdown_ratio[row, column]), 0.0),
                upper_ratio=max(float(answer.upper[row, column]), 0.0),
                level=_LEVELS[int(answer.level[row, column])],
                in_domain=bool(answer.in_domain[row, column]),
                model_version=answer.model_version,
            )
            for row, victim in enumerate(answer.job_ids)
            for column, other in enumerate(answer.job_ids)
        ]


def trained_predictor(trace: Trace, *, models: Path | None, graphs: Path | None) -> TrainedPredictor:
    """Open the predictor for a trace whose jobs have graphs.

    Args:
        trace: The jobs.
        models: State folder of the predictor; None = the user's own.
        graphs: Folder of SHA256.onnx files; None = those of the predictor's state and of its data sets.

    Raises:
        PredictionsError: The jobs have no graphs, a graph is missing, or nothing was trained.
    """
    wanted = {job.graph_sha256 for job in trace.jobs if job.graph_sha256}
    if not wanted:
        raise PredictionsError(
            f"jobs of this trace ({trace.format}) have no graphs, so nothing can be predicted of them; use held-out,"
            " oracle, noise or error, or take the jobs for measured ones with graphs (--measured FOLDER)"
        )
    state_dir = models or default_state_dir()
    versions = VersionHolder(VersionStore(state_dir / "models"))
    versions.reload()
    if versions.current() is None:
        raise PredictionsError(f"{state_dir} holds no trained model; run: python -m predictor_service train")
    library = GraphLibrary(InProcessDescriber(), None)
    folders = [graphs] if graphs is not None else [state_dir / "graphs", *default_datasets_dir().glob("*/graphs")]
    for sha256 in sorted(wanted):
        library.describe(_graph(sha256, folders), {})
    return TrainedPredictor(Predictor(library, versions))


_TARGETS = {
    "step": "step_ms",
    "memory": "memory_bytes",
    "utilization": "utilization_ratio",
    "slowdown": "slowdown_ratio",
}
_MEASURED_LEAST = {"slowdown": 0.02}
"""Of smaller slowdowns a factor says nothing."""
_FACTOR_MAX = 10.0


class HeldOutErrors:
    """Errors that a version really made, of jobs whose families it was not shown: each draws one of them.

    Args:
        held_out: What the version predicted of such rows. A device type without rows of a quantity gets those of all
            types but the stand-in, where there are any.
        device: Whose errors of memory the bound is made for.
        seed: Of the run.

    Raises:
        PredictionsError: It has no rows of some quantity.
    """

    def __init__(self, held_out: HeldOut, *, device: str, seed: int) -> None:
        self._device, self._seed = device, seed
        self._factors: dict[str, dict[str, list[float]]] = {}
        for quantity, target in _TARGETS.items():
            found = {
                device: factors
                for device, targets in held_out.items()
                if target in targets and (factors := _factors_of(targets[target], _MEASURED_LEAST.get(quantity, 0.0)))
            }
            if not found:
                raise PredictionsError(
                    f"the predictor's version has no held-out rows of {target}; use oracle, noise or error, or another"
                    " version (--models)"
                )
            others = [factor for device, factors in found.items() if device != STANDIN for factor in factors]
            found[""] = others or found[STANDIN]
            self._factors[quantity] = found

    @property
    def memory_bound_ratio(self) -> float:
        """What 99 % of the predictions of memory have to be multiplied with."""
        factors = sorted(self._of("memory", self._device))
        return max(1.0 / factors[len(factors) // 100], 1.0)

    def factor(self, quantity: str) -> float:
        """Return the factor drawn for a quantity of a job on a device type, e.g. step/KEY/DEVICE."""
        name, device = quantity.partition("/")[0], quantity.rpartition("/")[2]
        return Random(f"{self._seed}/{quantity}").choice(self._of(name, device))

    def _of(self, name: str, device: str) -> list[float]:
        return self._factors[name].get(device) or self._factors[name][""]


def _factors_of(rows: HeldOutRows, least: float) -> list[float]:
    return [
        min(max(predicted / measured, 1 / _FACTOR_MAX), _FACTOR_MAX)
        for predicted, measured in zip(rows.predicted, rows.measured, strict=True)
        if measured > least and predicted >= 0
    ]


def read_held_out(models: Path | None) -> HeldOut:
    """Return what the version that serves, or else the one that comes with the program, predicted of held-out rows.

    Args:
        models: State folder of the predictor; None = the user's own.

    Raises:
        PredictionsError: There is no version, or it has kept none.
    """
    folder = (models or default_state_dir()) / "models"
    try:
        store = VersionStore(folder) if folder.is_dir() else None
        serving = store.current() if store is not None else None
        if store is not None and serving is not None:
            return store.held_out(serving)
        shipped = read_public_version() if models is None else None
    except PredictorError as error:
        raise PredictionsError(f"the predictor's errors cannot be read: {error}; name another --models") from error
    if shipped is None:
        raise PredictionsError(f"{folder} holds no trained model; run: python -m predictor_service train")
    return shipped.held_out


def _graph(sha256: str, folders: Sequence[Path]) -> bytes:
    for folder in folders:
        path = folder / f"{sha256}.onnx"
        if path.is_file():
            return path.read_bytes()
    places = ", ".join(str(folder) for folder in folders)
    raise PredictionsError(f"graph {sha256} lies in none of {places}; name its folder with --graphs")


def _settings(settings: JobSettings | None) -> JobSettings:
    return settings or JobSettings(global_batch_size=1)


def _memory(estimate: Estimate) -> MemoryPoint:
    upper = estimate.upper if estimate.upper_99 is None else estimate.upper_99
    value = round(estimate.value)
    return MemoryPoint(memory_bytes=value, memory_bytes_upper_99=max(round(upper), value))
