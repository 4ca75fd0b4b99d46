"""Answers that may be asked for again are kept, as many bytes of them as the bound says."""

from __future__ import annotations

import pytest

from cotenant.v1 import prediction_pb2
from predictor_service.grpc_api import repeated_requests
from predictor_service.grpc_api.repeated_requests import RepeatedRequests

_ANSWER = b"x" * 100


def test_answers_beyond_the_bound_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_requests, "ANSWERS_BYTES_MAX", 2 * len(_ANSWER))
    remembered, produced = RepeatedRequests(), list[str]()

    def ask(request_id: str) -> None:
        def produce() -> bytes:
            produced.append(request_id)
            return _ANSWER

        body = prediction_pb2.PredictJobRequest(device="a100")
        assert remembered.answer("PredictJob", request_id, body, wait_s=1.0, produce=produce) == _ANSWER

    for request_id in ("a", "b", "b", "c", "b", "c", "a"):
        ask(request_id)
    assert produced == ["a", "b", "c", "a"]
