"""Groups of commands whose help has a whole sentence about each."""

from __future__ import annotations

import click

_SENTENCE_MAX = 400
"""Longer than any; click ends it with dots before the edge of a terminal where it is not told."""


class ListedGroup(click.Group):
    """Lists its commands with their first sentences, which go on in the next line where they are long."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(_SENTENCE_MAX)) for name, one in found if one and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
