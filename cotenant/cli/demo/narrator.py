"""Where the demo speaks: sections, tables and a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cotenant import system_clock

LINE_EVERY_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence about a subject that is worth saying once.

    Attributes:
        key: What makes it new.
        text: The sentence.
    """

    key: tuple[str, ...]
    text: str


class Narrator:
    """Writes for people.

    Args:
        console: Where to; stderr when stdout is wanted for data.
        width: Columns that tables may take.
    """

    def __init__(self, console: Console, width: int) -> None:
        self.width = width
        self._console = console
        self._live: Live | None = None
        self._last_line_ms = 0
        self._noted: dict[str, tuple[str, ...]] = {}
        self._started_ms = system_clock.steady_ms()

    def section(self, title: str) -> None:
        """Starts a new part."""
        self._console.print()
        self.say(Text(f"── {title}", style="bold cyan"))

    def say(self, text: Text | str) -> None:
        """Writes a sentence, wrapped, or a table, as it is."""
        is_table = isinstance(text, Text)
        self._console.print(text if isinstance(text, Text) else Text(text), soft_wrap=is_table)

    def mark(self, message: str, style: str = "bold yellow") -> None:
        """Writes a line with the time since the demo began."""
        seconds = (system_clock.steady_ms() - self._started_ms) / 1000
        self._console.print(Text(f"[{seconds:5.1f} s] {message}", style=style))

    @contextmanager
    def working(self, message: str) -> Iterator[Callable[[str], None]]:
        """Shows that something takes a while; yields a function that changes the message."""
        if not self._console.is_terminal:
            self.mark(message, style="dim")
            yield lambda text: self.mark(text, style="dim")
            return
        with self._console.status(message) as status:
            yield status.update

    @contextmanager
    def live(self) -> Iterator[None]:
        """Redraws what `redraw` is given in place, where the console is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def redraw(self, table: Callable[[], Text], line: Callable[[], str], notes: Mapping[str, Note]) -> None:
        """Shows the newest state: the table in place; elsewhere what has changed, and now and then the line.

        Args:
            table: Builds the table.
            line: Builds the line.
            notes: By subject; one is written when its key differs from the last one.
        """
        if self._live is not None:
            self._live.update(table(), refresh=True)
            return
        for subject, note in notes.items():
            if self._noted.get(subject) != note.key:
                self._noted[subject] = note.key
                self.mark(note.text, style="cyan")
        if system_clock.steady_ms() - self._last_line_ms >= LINE_EVERY_MS and (text := line()):
            self._last_line_ms = system_clock.steady_ms()
            self.mark(text, style="")
