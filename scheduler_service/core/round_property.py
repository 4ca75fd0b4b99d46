"""Values of one decision that are found at their first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    round_property = cached_property
else:

    class round_property(cached_property):  # noqa: N801 - used as the decorator that it takes the place of
        """A `cached_property` without the lock that it has before Python 3.12: no thread shares a decision.

        The lock took 0.7 % of a crowded simulation: several such values are found in every round.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:  # noqa: ANN401 - of any class
            """Find the value, which takes the place of this in the object."""
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
