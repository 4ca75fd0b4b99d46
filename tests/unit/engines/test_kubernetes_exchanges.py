"""The API server of the tests answers as a real one (1.20.2) did; `make kubernetes-test` asks the real one again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.fake_kubernetes import FakeKubernetes, node_row
from tests.support.kubernetes_exchanges import exchange_all

RECORDED = Path(__file__).parent / "recorded" / "kubernetes_1_20.json"


def test_the_api_server_of_the_tests_answers_as_recorded() -> None:
    fake = FakeKubernetes()
    fake.add(node_row("n1"))

    def ask(method: str, path: str, body: dict[str, Any], _content_type: str) -> tuple[int, dict[str, Any]]:
        return fake.answer(method, path, body)

    assert exchange_all(ask, fake.add, "n1") == json.loads(RECORDED.read_text())
