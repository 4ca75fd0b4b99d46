"""Values of one decision are found at their first use, and once."""

from __future__ import annotations

from scheduler_service.core.round_property import round_property


class Sum:
    def __init__(self) -> None:
        self.looks = 0

    @round_property
    def total(self) -> int:
        """Of what was looked at."""
        self.looks += 1
        return 7


def test_a_value_is_found_once_for_each_object() -> None:
    one, other = Sum(), Sum()
    assert one.looks == 0
    assert (one.total, one.total) == (7, 7)
    assert (one.looks, other.looks) == (1, 0)


def test_a_value_keeps_the_words_about_it() -> None:
    assert Sum.total.__doc__ == "Of what was looked at."
