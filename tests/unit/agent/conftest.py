"""Where shims run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_agent.isolation.isolation_means import find_namespace_obstacle
from tests.support.shim_bench import Bench, running_shims


@pytest.fixture(params=["with namespaces", "without"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Shims that give their jobs namespaces, where this machine permits it, and shims that do not."""
    with_namespaces = request.param == "with namespaces" and not find_namespace_obstacle()
    with running_shims(tmp_path, with_namespaces=with_namespaces) as found:
        yield found
