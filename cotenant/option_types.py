"""Types of flags' values, where click's own types are too wide."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    Kind = click.ParamType[Any]
else:  # click before 8.2 knows no type of its values
    Kind = click.ParamType


class FiniteRange(click.FloatRange):
    """A range that holds neither NaN, with which every comparison is false, nor infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 (as click declares it)
        """Returns the number, inside the range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number." if math.isnan(number) else f"{value!r} is not finite.", param, ctx)
        return number


class NamedFolder(click.Path):
    """A folder that need not be there yet; an empty text, as of a variable that is not set, is not the present one."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 (click's)
        """Returns the path."""
        if not str(value):
            self.fail("the name of a folder is empty.", param, ctx)
        return super().convert(value, param, ctx)


class OptionalFile(Kind):
    """A file that need not be there yet; an empty text names none."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | None:  # noqa: ANN401
        """Returns the path, with the user's folder for ~."""
        return Path(value).expanduser() if str(value) else None


class Texts(Kind):
    """Texts separated by commas."""

    name = "text[,text]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:  # noqa: ANN401
        """Returns them without the spaces around them; empty ones are left out."""
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


class Integers(Texts):
    """Whole numbers from 0, separated by commas."""

    name = "integer[,integer]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:  # noqa: ANN401
        """Returns them."""
        return tuple(click.IntRange(0).convert(part, param, ctx) for part in super().convert(value, param, ctx))
