"""A trained predictor, in process and behind gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import grpc

from cotenant.v1 import prediction_pb2_grpc
from predictor_service.grpc_api.admission_queue import AdmissionQueue
from predictor_service.grpc_api.metrics import ServiceMetrics
from predictor_service.grpc_api.prediction_servicer import PredictionServicer
from predictor_service.grpc_api.request_pipeline import RequestPipeline
from predictor_service.grpc_api.server import PredictionServer, ServerOptions
from predictor_service.inference.graph_library import GraphDescriber, GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.predictor import Predictor
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.store import FILE_NAME, ProfileStore
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.training import train
from tests.support.measured_dataset import write_dataset
from tests.support.shared_folders import made_once

SEED = 7
ON_LOOPBACK = ServerOptions(address="127.0.0.1:0")


@cache
def trained_store() -> VersionStore:
    """Returns a store with one version trained on the invented dataset; nothing may change it."""

    def fill(folder: Path) -> None:
        write_dataset(folder / "datasets" / "invented")
        train(folder / "datasets", VersionStore(folder / "models"), SEED)

    return VersionStore(made_once("trained_store", fill) / "models")


def open_predictor(folder: Path | None = None, describer: GraphDescriber | None = None) -> Predictor:
    """Returns a predictor on the trained store; `folder` keeps its graphs."""
    versions = VersionHolder(trained_store())
    versions.reload()
    return Predictor(GraphLibrary(describer or InProcessDescriber(), folder), versions)


@contextmanager
def listening_server(
    folder: Path,
    predictor: Predictor | None = None,
    line: AdmissionQueue | None = None,
    options: ServerOptions = ON_LOOPBACK,
) -> Iterator[str]:
    """Serves a predictor and yields its address."""
    journal, line = OutcomeJournal(folder / "journal.sqlite"), line or AdmissionQueue(threads=8)
    profiles = ProfileStore(folder / FILE_NAME)
    pipeline = RequestPipeline(ServiceMetrics(), line)
    servicer = PredictionServicer(predictor or open_predictor(folder / "graphs"), journal, pipeline, profiles)
    server = PredictionServer(servicer, line, options)
    server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop(1.0)
        journal.close()
        profiles.close()


@contextmanager
def running_server(
    folder: Path, predictor: Predictor | None = None, line: AdmissionQueue | None = None
) -> Iterator[grpc.Channel]:
    """Serves a predictor on loopback and yields a channel to it."""
    with listening_server(folder, predictor, line) as address, grpc.insecure_channel(address) as channel:
        yield channel


def stub_of(channel: grpc.Channel) -> prediction_pb2_grpc.PredictionServiceStub:
    """Returns the client's side."""
    return prediction_pb2_grpc.PredictionServiceStub(channel)
