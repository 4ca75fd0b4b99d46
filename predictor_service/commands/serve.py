"""serve: train if nothing was ever trained, then answer until a signal stops it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from cotenant.stop_signals import until_signal
from cotenant.structured_log import start_logging
from cotenant.system_clock import now_ms
from cotenant.tls_settings import check_listening
from predictor_service.commands.model_upkeep import ModelUpkeep, repeat_until
from predictor_service.features.graphs.extraction_pool import ExtractionPool
from predictor_service.grpc_api.admission_queue import AdmissionQueue
from predictor_service.grpc_api.drift_metrics import DriftMetrics
from predictor_service.grpc_api.metrics import ServiceMetrics, serve_metrics
from predictor_service.grpc_api.model_servicer import ModelServicer
from predictor_service.grpc_api.prediction_servicer import PredictionServicer
from predictor_service.grpc_api.profile_metrics import ProfileMetrics
from predictor_service.grpc_api.request_pipeline import RequestPipeline
from predictor_service.grpc_api.server import PredictionServer, ServerOptions
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.predictor import Predictor
from predictor_service.outcome_journal import FILE_NAME as JOURNAL_FILE
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.intake import open_profiles
from predictor_service.profile_store.retention import Retention
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.operations import RetrainingOperations
from predictor_service.settings import Settings

_logger = logging.getLogger(__name__)
_TRAINING_TIMEOUT_S = 1800.0
_MODEL_CHECK_S = 2.0


def serve(settings: Settings) -> None:
    """Runs the service until SIGTERM or SIGINT.

    Raises:
        InputError, PredictorError: It cannot listen as its settings demand.
    """
    check_listening(settings)
    start_logging("predictor", settings.log_level, is_service=True)
    options = ServerOptions(
        address=settings.address,
        tls_certificate_file=settings.tls_certificate_file,
        tls_key_file=settings.tls_key_file,
        client_ca_file=settings.client_ca_file,
        insecure=settings.insecure,
        callers_file=settings.callers_file,
        revoked_file=settings.revoked_file,
        socket=settings.socket,
        serve_roleless=settings.serve_roleless,
    )
    stop = until_signal()
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        _run(settings, options, stop, stack)


def _run(settings: Settings, options: ServerOptions, stop: threading.Event, stack: ExitStack) -> None:
    versions = VersionHolder(VersionStore(settings.state_dir / "models"))
    if versions.reload() is None:
        _train_first(settings)
        versions.reload()
    pool = stack.enter_context(
        ExtractionPool(
            settings.extraction_workers,
            settings.extraction_memory_bytes,
            settings.extraction_timeout_s,
            # New graphs wait in at most half of the threads: known ones are answered meanwhile.
            queue_limit=max(1, settings.threads // 2 - settings.extraction_workers),
        )
    )
    journal = OutcomeJournal(settings.state_dir / JOURNAL_FILE)
    stack.callback(journal.close)
    profiles = open_profiles(settings.state_dir, rows_max=settings.profiles_rows_max, days=settings.profiles_days)
    stack.callback(profiles.close)
    predictor = Predictor(GraphLibrary(pool, settings.state_dir / "graphs"), versions)
    metrics = ServiceMetrics()
    metrics.registry.register(ProfileMetrics(profiles))
    queue = AdmissionQueue(settings.threads)
    operations = RetrainingOperations(
        settings.state_dir, settings.datasets, settings.seed, journal.flush, versions.reload
    )
    stack.callback(operations.close)
    pipeline = RequestPipeline(metrics, queue)
    servicer = PredictionServicer(predictor, journal, pipeline, profiles)
    server = PredictionServer(servicer, queue, options, models=ModelServicer(operations, pipeline))
    server.start()
    stack.callback(server.stop, settings.drain_s)
    if settings.metrics_address:
        page = serve_metrics(settings.metrics_address, metrics.registry, lambda: "draining" if stop.is_set() else "")
        stack.callback(page.stop)
    _say_ready(settings.ready_file, f"{settings.address.rpartition(':')[0]}:{server.port}")
    drift = DriftMetrics(metrics.registry)
    upkeep = ModelUpkeep(
        settings, versions, journal, shown=metrics.model, drift=drift, operations=operations, profiles=profiles
    )
    upkeep.check_served()
    retention = Retention(profiles, journal, settings.profiles_days)

    def look_after_measurements() -> None:
        retention.look(now_ms())
        if profiles.was_changed_elsewhere():
            servicer.relearn()

    parts = (
        journal.flush,
        upkeep.watch_drift,
        look_after_measurements,
        upkeep.follow_versions,
        servicer.follow_changes,
    )
    repeat_until(stop, parts, _MODEL_CHECK_S)
    _logger.info("draining")


def _train_first(settings: Settings) -> None:
    """Takes over what comes with the program, or trains: in a process of its own, whose libraries never enter this."""
    arguments = ["train", "--state-dir", str(settings.state_dir), "--datasets", str(settings.datasets)]
    command = [sys.executable, "-m", "predictor_service", *arguments, "--seed", str(settings.seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    _logger.info("first_training", extra={"datasets": str(settings.datasets)})
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_TRAINING_TIMEOUT_S, env=environment)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        # Without models the service still answers, from device peaks, and every answer carries that notice.
        _logger.error("first_training_failed", extra={"reason": str(error)})


def _say_ready(ready_file: Path | None, address: str) -> None:
    _logger.info("serving", extra={"address": address})
    if ready_file is None:
        return
    partial = ready_file.with_name(f".{ready_file.name}.partial")
    partial.write_text(json.dumps({"address": address}) + "\n", encoding="ascii")
    partial.replace(ready_file)
