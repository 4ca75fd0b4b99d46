"""HOST:PORT: what is one, and what only this machine can reach."""

from __future__ import annotations

import pytest

from cotenant.addresses import is_loopback, split_address
from cotenant.errors import InputError
from tests.support.cases import for_each


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:7070", ("127.0.0.1", 7070)),
        ("[::1]:0", ("::1", 0)),
        ("host.example:65535", ("host.example", 65535)),
    ],
)
def test_an_address_is_taken_apart(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@for_each(
    "address",
    ["", ":7070", "host", "host:", "host:x", "host:-1", "host:70000", "host:\u0661", "::1:7070", "[::1]", "h:1:2"],
)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(InputError, match="is not an address") as refused:
        split_address(address)
    assert "127.0.0.1:7071" in refused.value.remedy


@for_each(
    "address",
    ["127.0.0.1", "127.9.9.9:1", "localhost:7071", "localhost", "::1", "[::1]", "[::1]:7071", "unix:/run/x.sock"],
)
def test_loopback_is_known_with_and_without_a_port(address: str) -> None:
    assert is_loopback(address)


@for_each(
    "address",
    ["0.0.0.0:1", "[::]:1", "::", "127.0.0.1.example:1", "localhost.example:1", "dns:///127.0.0.1:1", "::1:7071", "",
     ":1", "[::ffff:10.0.0.1]:1", "127.0.0.1,10.0.0.1:1", "10.0.0.1:127"],
)  # fmt: skip
def test_what_others_could_reach_is_not_loopback(address: str) -> None:
    assert not is_loopback(address)
