"""Where the API server is and what is shown there; a kubeconfig may hold anything."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotenant.engines.errors import (
    EngineDeniedError,
    EngineForbiddenError,
    EngineRefusedError,
    EngineUnreachableError,
)
from cotenant.engines.kubernetes.access import ClusterAccess, find_access
from cotenant.engines.kubernetes.api import ServedApi
from cotenant.engines.kubernetes.values import instant_ms, quantity_of
from cotenant.errors import InputError
from tests.support.cases import for_each
from tests.support.fake_kubernetes import FakeKubernetes, node_row, reached, served


def write(folder: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> Path:
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path


def test_server_and_token_are_read(tmp_path: Path) -> None:
    access = find_access(write(tmp_path, {"server": "https://k8s.example:6443/base/"}, {"token": "secret"}), "", {})
    assert (access.host, access.port, access.path, access.read_token()) == ("k8s.example", 6443, "/base", "secret")
    assert access.tls is not None
    assert "secret" not in repr(access)


def test_a_token_in_a_file_is_read_again_each_time(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    access = find_access(write(tmp_path, {"server": "https://k8s.example"}, {"tokenFile": "token"}), "", {})
    assert access.read_token() == "first"
    (tmp_path / "token").write_text("second\n")
    assert access.read_token() == "second"


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({"server": "http://k8s.example:8080"}, {}, "without TLS"),
        ({"server": "ftp://k8s.example"}, {}, "no address"),
        ({"server": "https://[::1"}, {}, "no address"),
        ({"server": "https://h:99999"}, {}, "no address"),
        ({}, {}, "no address"),
        ({"server": "https://h"}, {"exec": {"command": "aws"}}, "'exec'"),
        ({"server": "https://h", "insecure-skip-tls-verify": True}, {}, "insecure-skip-tls-verify"),
        ({"server": "https://h", "proxy-url": "http://p"}, {}, "proxy-url"),
        ({"server": "https://h", "certificate-authority-data": "%"}, {}, "base64"),
        ({"server": "https://h", "certificate-authority-data": "YWJj"}, {}, "PEM"),
        ({"server": "https://h", "certificate-authority": "missing.crt"}, {}, "cannot be read"),
        ({"server": "https://h"}, {"client-certificate-data": "YWJj", "client-key-data": "YWJj"}, "do not belong"),
    ],
)
def test_what_is_not_supported_or_damaged_is_refused(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        find_access(write(tmp_path, cluster, user), "", {})


@pytest.mark.parametrize("text", ["{", "- 1", "", "a: " * 5 + "b"])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(InputError, match=r"is no kubeconfig|is not YAML"):
        find_access(tmp_path / "config", "", {})


def test_a_context_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        find_access(write(tmp_path, {"server": "https://h"}), "there", {})
    assert "here" in caught.value.remedy


def test_without_any_kubeconfig_the_remedy_names_the_ways(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        find_access(tmp_path / "none", "", {})
    assert "--kubeconfig" in caught.value.remedy


@pytest.fixture
def cluster() -> FakeKubernetes:
    made = FakeKubernetes()
    for number in range(5):
        made.add(node_row(f"n{number}"))
    return made


def names(api: ServedApi) -> list[str]:
    return [row["metadata"]["name"] for row in api.list_rows("/api/v1/nodes", {})]


def test_a_list_of_several_pages_is_read_to_its_end(cluster: FakeKubernetes, api: ServedApi) -> None:
    cluster.rows_per_page = 2
    assert names(api) == ["n0", "n1", "n2", "n3", "n4"]
    assert len(cluster.requests) == 3


@pytest.mark.parametrize("status", [401, 403, 410, 429, 500, 503])
def test_a_list_that_is_refused_is_an_engine_that_does_not_answer(
    cluster: FakeKubernetes, api: ServedApi, status: int
) -> None:
    cluster.refused["GET .*"] = (status, "no")
    with pytest.raises(EngineUnreachableError):
        names(api)


@pytest.mark.parametrize(("status", "is_denied"), [(401, True), (403, True), (500, False), (429, False)])
def test_a_list_that_we_may_not_read_is_told_from_a_server_in_trouble(
    cluster: FakeKubernetes, api: ServedApi, status: int, is_denied: bool
) -> None:
    cluster.refused["GET .*"] = (status, "no")
    with pytest.raises(EngineUnreachableError) as caught:
        names(api)
    assert isinstance(caught.value, EngineDeniedError) is is_denied
    assert bool(caught.value.remedy) is is_denied


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, EngineForbiddenError),
        (403, EngineForbiddenError),
        (404, EngineRefusedError),
        (409, EngineRefusedError),
        (422, EngineRefusedError),
        (429, EngineUnreachableError),
        (500, EngineUnreachableError),
        (504, EngineUnreachableError),
    ],
)
def test_an_order_is_refused_by_what_is_said_and_unknown_after_a_fault(
    cluster: FakeKubernetes, api: ServedApi, status: int, error: type[Exception]
) -> None:
    cluster.refused["POST .*"] = (status, "not \x1b[31mnow\n")
    with pytest.raises(error, match=r"not \[31mnow"):
        api.order("POST", "/api/v1/namespaces/team/events", {})


def test_a_connection_that_the_server_closed_is_opened_again() -> None:
    cluster = FakeKubernetes()
    with served(cluster) as address, closing(reached(address)) as api:
        names(api)
        assert api._connection is not None
        assert api._connection.sock is not None
        api._connection.sock.shutdown(2)
        assert names(api) == []


def test_nobody_at_the_address_is_an_engine_that_does_not_answer() -> None:
    api = ServedApi(ClusterAccess(host="127.0.0.1", port=1), timeout_s=0.5)
    with pytest.raises(EngineUnreachableError, match="does not answer"):
        names(api)


def test_a_token_file_that_is_gone_is_no_crash(cluster: FakeKubernetes, tmp_path: Path) -> None:
    with served(cluster) as address:
        host, _, port = address.partition(":")
        access = ClusterAccess(host=host, port=int(port), token_file=tmp_path / "token")
        with closing(ServedApi(access)) as api, pytest.raises(EngineUnreachableError, match="cannot be read"):
            names(api)


@for_each(
    ("text", "amount"),
    [
        ("500m", 0.5),
        ("2", 2),
        ("1Gi", 2**30),
        ("1e3", 1000),
        ("1.5k", 1500),
        ("9E", 9e18 if 9e18 < 2**62 else 2.0**62),
        ("-1", 0),
        ("many", 0),
        ("1" * 40, 0),
        (None, 0),
        (True, 0),
        (float("nan"), 0),
        (3, 3),
    ],
)
def test_quantities_are_read_and_bounded(text: object, amount: float) -> None:
    assert quantity_of(text) == pytest.approx(amount)


@for_each("text", ["", "yesterday", "2026-11-23", "2026-11-23T06:00:00", "0001-01-01T00:00:00+23:59"])
def test_an_instant_that_is_none_is_zero(text: str) -> None:
    assert instant_ms(text) == 0
