"""A cluster of Kubernetes with one node, and cotenant's engine on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.api import ServedApi
from tests.support.fake_kubernetes import FakeKubernetes, node_row, reached, served


@pytest.fixture
def cluster() -> FakeKubernetes:
    made = FakeKubernetes()
    made.add(node_row("n1"))
    return made


@pytest.fixture
def api(cluster: FakeKubernetes) -> Iterator[ServedApi]:
    with served(cluster) as address, closing(reached(address)) as made:
        yield made


@pytest.fixture
def engine(api: ServedApi) -> KubernetesEngine:
    return KubernetesEngine(api, [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * 2**30)])
