"""A field that was renamed is stored and read under the key that older logs have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from scheduler_service.core import codec
from scheduler_service.core.errors import CodecError


@dataclass(frozen=True)
class Held:
    """A record with a field of a new name."""

    abandoned: tuple[int, ...]
    other: int = 0


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_STORED_NAMES", {"Held": {"abandoned": "ghosts"}})
    codec._codec.cache_clear()


@pytest.mark.usefixtures("renamed")
def test_a_renamed_field_keeps_its_stored_key() -> None:
    stored: dict[str, Any] = codec.encode(Held, Held(abandoned=(1,)))
    assert stored == {"ghosts": [1], "other": 0}
    assert codec.decode(Held, {"ghosts": [1]}) == Held(abandoned=(1,))


@pytest.mark.usefixtures("renamed")
def test_the_new_name_is_no_stored_key() -> None:
    with pytest.raises(CodecError, match="unknown or missing abandoned, ghosts"):
        codec.decode(Held, {"abandoned": [1]})
