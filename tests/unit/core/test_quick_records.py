"""Records that are made in one copy of a dictionary are frozen dataclasses like all others."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from inspect import signature

import pytest

from scheduler_service.core.copied_record import CopiedRecord, make_records, quick_record, slotted_record


@quick_record
class Sample(CopiedRecord):
    """One of each kind of field."""

    name: str
    count: int = 1
    parts: dict[str, int] = field(default_factory=dict)


@quick_record
class Finished:
    """Completes itself."""

    seen: int
    doubled: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", 2 * self.seen)


def test_what_is_not_given_takes_its_default_and_no_two_records_share_a_made_one() -> None:
    first, second = Sample(name="a"), Sample(name="a")
    assert (first.name, first.count, first.parts) == ("a", 1, {})
    assert first.parts is not second.parts
    assert first == second
    assert first != replace(first, count=2)
    assert repr(first).endswith("Sample(name='a', count=1, parts={})")
    assert [part.name for part in fields(first)] == ["name", "count", "parts"]


def test_a_record_without_a_field_or_with_an_unknown_one_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"Sample\.__init__\(\) missing 1 required keyword-only argument: 'name'"):
        Sample()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Sample\.__init__\(\) got an unexpected keyword argument 'kount'"):
        Sample(name="a", kount=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Sample has no kount"):
        Sample(name="a").changed(kount=3)


def test_a_record_cannot_be_changed_and_a_changed_copy_leaves_it_as_it_was() -> None:
    one = Sample(name="a")
    with pytest.raises(FrozenInstanceError):
        one.count = 2  # type: ignore[misc]
    assert one.changed(count=2) == Sample(name="a", count=2)
    assert one.count == 1


def test_a_record_finishes_itself_as_a_dataclass_does() -> None:
    assert Finished(seen=3).doubled == 6
    assert replace(Finished(seen=3), seen=5).doubled == 10
    assert hash(Finished(seen=3)) == hash(Finished(seen=3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    """A frozen dataclass with slots."""

    name: str
    count: int = 1
    note: str | None = None


def test_records_made_by_columns_are_those_that_the_constructor_makes() -> None:
    made = make_records(Slotted, 2, name=["a", "b"], note=["x", None])
    assert made == [Slotted(name="a", note="x"), Slotted(name="b")]
    assert hash(made[0]) == hash(Slotted(name="a", note="x"))
    assert replace(made[0], count=5) == Slotted(name="a", count=5, note="x")
    with pytest.raises(FrozenInstanceError):
        made[0].count = 2  # type: ignore[misc]
    assert make_records(Slotted, 0, name=[]) == []


def test_columns_that_do_not_make_whole_records_are_refused() -> None:
    with pytest.raises(TypeError, match="name"):
        make_records(Slotted, 1, count=[1])
    with pytest.raises(TypeError, match="size"):
        make_records(Slotted, 1, name=["a"], size=[1])
    with pytest.raises(ValueError, match="2 values"):
        make_records(Slotted, 2, name=["a", "b"], count=[1])


def plain_and_quick() -> list[type]:
    """Return the same two records, the second derived from the first, made by a dataclass and made quickly."""
    found: list[type] = []
    for make in (dataclass(frozen=True, slots=True, kw_only=True), slotted_record):

        @make
        class Base:
            at_ms: int

            def __post_init__(self) -> None:
                if self.at_ms < 0:
                    raise ValueError("before the beginning")

        @make
        class Derived(Base):
            name: str
            count: int = 1
            parts: dict[str, int] = field(default_factory=dict)

        found += [Base, Derived]
    return found


def test_a_slotted_record_is_what_a_frozen_dataclass_with_slots_is() -> None:
    _, plain, _, quick = plain_and_quick()
    for values in ({"at_ms": 3, "name": "a"}, {"at_ms": 0, "name": "b", "count": 2, "parts": {"x": 1}}):
        assert asdict(quick(**values)) == asdict(plain(**values))
        assert repr(quick(**values)) == repr(plain(**values))
    one = quick(at_ms=1, name="a")
    assert one == quick(name="a", at_ms=1)
    assert one != replace(one, count=2)
    assert one.parts is not quick(at_ms=1, name="a").parts
    assert not hasattr(one, "__dict__")
    assert [*signature(quick).parameters] == [*signature(plain).parameters] == ["at_ms", "name", "count", "parts"]
    with pytest.raises(FrozenInstanceError):
        one.count = 2


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"at_ms": 1}, "missing 1 required keyword-only argument: 'name'"),
        ({"at_ms": 1, "name": "a", "kount": 3}, "unexpected keyword argument 'kount'"),
        ({"at_ms": -1, "name": "a"}, "before the beginning"),
    ],
)
def test_a_slotted_record_refuses_what_a_frozen_dataclass_refuses(values: dict[str, object], complaint: str) -> None:
    _, plain, _, quick = plain_and_quick()
    for made in (plain, quick):
        with pytest.raises((TypeError, ValueError), match=complaint):
            made(**values)
