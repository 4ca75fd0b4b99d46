"""The predictor answers each role what the table allows, over a real channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from benchmarks.fuzzed_roles import fuzz_role
from cotenant.access.roles import Role, roles_of
from cotenant.access.tokens import issue_token, read_token, token_metadata, write_token_list
from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.grpc_api.server import ServerOptions
from tests.support.callers import code_of_empty_call, issue_all, metadata_of, served_methods
from tests.support.fuzzed_roles import check_tally
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import listening_server, open_predictor, stub_of

# The service of models is guarded by the same interceptor; here it is not served.
PREDICTOR = [
    name for name in served_methods() if not any(other in name for other in ("Scheduling", "NodeAgent", "Model"))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("callers")


@pytest.fixture(scope="module")
def channel(folder: Path) -> Iterator[grpc.Channel]:
    options = ServerOptions(address="127.0.0.1:0", callers_file=issue_all(folder))
    with listening_server(folder, options=options) as address, grpc.insecure_channel(address) as opened:
        yield opened


@pytest.mark.parametrize("method", PREDICTOR)
def test_each_role_gets_through_where_the_table_lets_it(channel: grpc.Channel, folder: Path, method: str) -> None:
    roles = roles_of(method)
    refused = {
        role
        for role in Role
        if code_of_empty_call(channel, method, metadata_of(folder, role))[0] is grpc.StatusCode.PERMISSION_DENIED
    }
    assert refused == (set() if roles is None else set(Role) - roles)
    nobody, _ = code_of_empty_call(channel, method, None)
    assert (nobody is grpc.StatusCode.UNAUTHENTICATED) == (roles is not None)


@pytest.mark.parametrize("role", Role)
def test_random_calls_of_a_role_reach_nothing_that_its_table_forbids(tmp_path: Path, role: Role) -> None:
    check_tally(fuzz_role(tmp_path, "predictor", role, calls=100), calls=100)


def test_an_engine_reports_outcomes_of_its_own_predictions_only(tmp_path: Path) -> None:
    callers = tmp_path / "callers"
    names = {"engine-a": Role.ENGINE, "engine-b": Role.ENGINE, "scheduler-1": Role.SCHEDULER}
    write_token_list(callers, [issue_token(tmp_path / name, role, name) for name, role in names.items()])
    shown = {name: (token_metadata(read_token(tmp_path / name)),) for name in names}
    predictor = open_predictor(tmp_path / "graphs")
    sha256 = predictor.keep_graph(next(iter(graphs().values())))[0]
    settings = resources_pb2.JobSettings(global_batch_size=32)
    job = prediction_pb2.JobRef(job_id="a", graph_sha256=sha256, settings=settings)
    options = ServerOptions(address="127.0.0.1:0", callers_file=callers)
    with listening_server(tmp_path, predictor, options=options) as address, grpc.insecure_channel(address) as opened:
        stub = stub_of(opened)

        def reported(name: str, prediction_id: str) -> int:
            outcome = prediction_pb2.Outcome(prediction_id=prediction_id, utilization_ratio=0.5)
            request = prediction_pb2.RecordOutcomesRequest(outcomes=[outcome])
            answer = stub.RecordOutcomes(request, metadata=shown[name])
            assert list(answer.unknown_prediction_ids) == [prediction_id] * (1 - answer.recorded)
            return answer.recorded

        for asker, reporters in (("engine-a", {"engine-a", "scheduler-1"}), ("scheduler-1", {"scheduler-1"})):
            alone = prediction_pb2.PredictJobRequest(graph_sha256=sha256, device="cpu-standin", settings=settings)
            pair = prediction_pb2.PredictPairsRequest(device="cpu-standin", jobs=[job])
            for prediction_id in (
                stub.PredictJob(alone, metadata=shown[asker]).prediction_id,
                stub.PredictPairs(pair, metadata=shown[asker]).prediction_id,
            ):
                assert {name for name in names if reported(name, prediction_id)} == reporters
