"""What /metrics shows of requests."""

from __future__ import annotations

import threading

from prometheus_client import generate_latest

from predictor_service.grpc_api.metrics import BOUNDS_MS, ServiceMetrics


def page(metrics: ServiceMetrics) -> list[str]:
    return generate_latest(metrics.registry).decode().splitlines()


def test_answers_are_counted_by_method_and_code_and_times_by_method() -> None:
    metrics = ServiceMetrics()
    for code, duration_ms in (("OK", 0), ("OK", 2), ("OK", 3), ("INTERNAL", 60_000)):
        metrics.requests.begin()
        metrics.requests.end("PredictJob", code, duration_ms)
    metrics.requests.begin()
    lines = page(metrics)
    assert 'cotenant_predictor_requests_total{code="OK",method="PredictJob"} 3.0' in lines
    assert 'cotenant_predictor_requests_total{code="INTERNAL",method="PredictJob"} 1.0' in lines
    assert "cotenant_predictor_requests_under_way 1.0" in lines
    name = "cotenant_predictor_request_seconds"
    buckets = [line for line in lines if line.startswith(f"{name}_bucket")]
    counts = [int(float(line.split()[-1])) for line in buckets]
    assert counts == [1, 2, 3, *[3] * (len(BOUNDS_MS) - 3), 4]
    assert 'le="0.002"' in buckets[1]
    assert f'{name}_count{{method="PredictJob"}} 4.0' in lines
    assert f'{name}_sum{{method="PredictJob"}} 60.005' in lines


def test_no_count_is_lost_between_threads() -> None:
    metrics = ServiceMetrics()

    def count() -> None:
        for _ in range(2_000):
            metrics.requests.begin()
            metrics.requests.end("PredictJob", "OK", 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 'cotenant_predictor_requests_total{code="OK",method="PredictJob"} 8000.0' in page(metrics)
    assert "cotenant_predictor_requests_under_way 0.0" in page(metrics)
