"""What an operator sees of the store, also when it cannot be read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from predictor_service.grpc_api.profile_metrics import ProfileMetrics
from predictor_service.profile_store.store import ProfileStore
from tests.support.measurement_windows import NOW_MS, window


def test_what_is_kept_and_refused_is_shown_and_a_closed_store_shows_nothing(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with closing(ProfileStore(tmp_path / "profiles.sqlite")) as store:
        registry.register(ProfileMetrics(store))
        store.add([window(1), window(2), window(3, steps=0), window(4, utilization_ratio=7.0)], NOW_MS)
        page = generate_latest(registry).decode()
    assert "cotenant_predictor_profiles 2.0" in page
    assert 'cotenant_predictor_profiles_refused_total{reason="a utilization or activity outside 0 to 1"} 1.0' in page
    assert "cotenant_predictor_profiles_bytes" in page
    assert generate_latest(registry) == b""
