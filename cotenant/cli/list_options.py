"""Options that take a list: separated by commas, or the option once more, of which click alone keeps the last only."""

from __future__ import annotations

from collections.abc import Sequence

import click


def join_texts(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> str | None:
    """Returns the lists of all its appearances as one; None = the option was not given. A callback of click."""
    return ",".join(values) or None


def join_numbers(ctx: click.Context, parameter: click.Parameter, values: Sequence[list[int]]) -> list[int] | None:
    """The same for lists of numbers."""
    return [number for each in values for number in each] or None
