"""Stops a policy that does not answer: a second thread notices it, and raises an error in the policy's own code.

Ten times within the policy's deadline the thread looks where the engine is. Each look that finds the same call adds the
pause before it, so that a machine that is busy or stood still adds little. A signal then raises `PolicySilentError` in
the policy's own lines, never in the engine's, whose indexes would be left half changed. Waiting (sleep, a lock, a
socket) is interrupted too. Native code that does not return is not: /readyz and the log name it, and a marker keeps the
next start from asking it again. If it keeps the interpreter's lock, this thread does not run either.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

from cotenant.access.roles import Role
from scheduler_service.adapters.storage.silence_marker import SilenceMarker
from scheduler_service.core import engine as engine_module
from scheduler_service.core.commands import Command
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.errors import PolicySilentError
from scheduler_service.core.event_handling.next_looks import ASKING
from scheduler_service.core.events import Actor, Event, PolicyChosen
from scheduler_service.core.planning.policy_answer import answer_of
from scheduler_service.core.policy_events import PolicySilenced

_log = logging.getLogger(__name__)

_SIGNAL = signal.SIGUSR2
_LOOKS = 10
"""In the time that a policy has to answer."""
_LATE_LOOK_S = 0.05
"""Between two tries to stop it: the engine's own lines may be most of what it does."""
_AGAIN_S = 1.0
"""Until the same call, which has caught what was raised in it and goes on, is interrupted again."""
_TOLD_S = 30.0
"""After so many seconds of tries the log says that they do not help."""
REPLAY_FACTOR = 6
"""A replay waits so many times as long: what was answered in time then is to be answered again."""
AGAIN_S = 600.0
"""Until a policy of this package that was given up is asked again."""
_DOORS = frozenset({answer_of.__code__, *ASKING})
"""Where the engine calls the policy."""
_CORE = str(Path(engine_module.__file__).parent)


class PolicyWatch:
    """Watches the thread in which it is made, and which runs the engine.

    Args:
        name: Returns the name of the policy in force.
        deadline_s: How long it may take to answer.
        mark: Notes, in the thread of the watch, that a policy is late with an answer to the engine; in words.
        doors: Further code than the engine's that calls policies, and expects what they may raise.

    Attributes:
        is_replaying: Stored events are handled.
        overdue: What a policy is late with, in words; empty = nothing.
    """

    def __init__(
        self,
        name: Callable[[], str],
        *,
        deadline_s: float,
        mark: Callable[[str], None] = lambda _: None,
        doors: Iterable[CodeType] = (),
    ) -> None:
        self._name, self._mark = name, mark
        self._doors = _DOORS | set(doors)
        self._deadline_s = deadline_s
        self._thread_id = threading.get_ident()
        self._ending = threading.Event()
        self._call: FrameType | None = None
        self._waited_s = self._raises_at_s = 0.0
        self._is_told = False
        self.is_replaying = False
        self.overdue = ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch, from the main thread of the process: only there a signal raises."""
        before = signal.signal(_SIGNAL, self._interrupt)
        watcher = threading.Thread(target=self._watch, name="policy-watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._ending.set()
            watcher.join()
            signal.signal(_SIGNAL, before)

    def _watch(self) -> None:
        pause_s = self._deadline_s / _LOOKS
        while not self._ending.wait(pause_s):
            pause_s = min(_LATE_LOOK_S, pause_s) if self._is_late(pause_s) else self._deadline_s / _LOOKS

    def _is_late(self, pause_s: float) -> bool:
        """Look, after a pause, whether the policy is at the same call; one that is late is signalled."""
        call = sys._current_frames().get(self._thread_id)
        while call is not None and call.f_code not in self._doors:
            call = call.f_back
        if call is None or call is not self._call:
            self._call, self._waited_s, self._raises_at_s = call, 0.0, 0.0
            self.overdue, self._is_told = "", False
            return False
        self._waited_s += pause_s
        allowed_s = self._deadline_s * (REPLAY_FACTOR if self.is_replaying else 1)
        if self._waited_s < allowed_s:
            return False
        if not self.overdue and call.f_code in _DOORS:
            # Before the signal, after which it may be too late to say so.
            self._mark(self._words())
        self.overdue = (
            f"policy {self._name()} has not answered for {self._waited_s:.0f} s; if that lasts, kill the scheduler and "
            "start it again: then that policy is not asked any more"
        )
        if self._waited_s > allowed_s + _TOLD_S and not self._is_told:
            self._is_told = True
            _log.error("policy_not_stopped", extra={"policy": self._name(), "waited_s": round(self._waited_s)})
        signal.pthread_kill(self._thread_id, _SIGNAL)
        return True

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise in the watched call, but for where the engine's own lines run within it."""
        while frame is not None and frame.f_code not in self._doors:
            if frame.f_code.co_filename.startswith(_CORE):
                return
            frame = frame.f_back
        is_late = frame is not None and frame is self._call and bool(self.overdue)
        if is_late and self._waited_s >= self._raises_at_s:
            self._raises_at_s = self._waited_s + _AGAIN_S
            raise PolicySilentError(self._words())

    def _words(self) -> str:
        return (
            f"policy {self._name()} did not answer in {self._waited_s:.0f} s and is not asked any more; choose "
            "another one, or the same one anew: `cotenant policies use NAME`"
        )


async def ask_again(
    engine: SchedulerEngine,
    tell: Callable[[Event], Awaitable[object]],
    own: Collection[str],
    *,
    pause_s: float,
) -> None:
    """Choose a policy anew, again and again, where one of this package was given up: it was slow, and does end.

    Args:
        engine: Whose policy it is.
        tell: Stores the choice.
        own: Names of the policies of this package; those of others may hang, and wait for an operator.
        pause_s: Between two looks.
    """
    while True:
        await asyncio.sleep(pause_s)
        state = engine.state
        if state.silence and state.policy in own:
            actor = Actor(role=Role.SCHEDULER)
            await tell(PolicyChosen(at_ms=0, policy=state.policy, parameters=state.parameters, actor=actor))


class SilenceRecord:
    """Stores that a policy was silent upon an event, for the replay.

    Args:
        engine: Whose events are observed.
        sequence: Returns that of the newest one.
        note: Takes the fact.
        marker: Says upon which event the policy is late, and keeps the fact until it is stored.
    """

    def __init__(
        self,
        engine: SchedulerEngine,
        sequence: Callable[[], int],
        note: Callable[[Event], None],
        marker: SilenceMarker,
    ) -> None:
        self._engine, self._sequence, self._note, self._marker = engine, sequence, note, marker
        self._known = engine.state.silence
        self._unstored: tuple[PolicySilenced, ...] = ()

    def begin(self, found: Sequence[PolicySilenced] = ()) -> None:
        """Hand in what was found in a replay; called before the next event is handled."""
        self._unstored = tuple(found)
        for silence in found:
            self._note(silence)
        self._marker.begin(self._sequence() + 1, self._unstored)

    def event_handled(self, event: Event, commands: Sequence[Command], *, duration_ns: int) -> None:
        """Hand the fact in, once per silence; called before anything follows from the event."""
        silence, sequence = self._engine.state.silence, self._sequence()
        if isinstance(event, PolicySilenced):
            self._unstored = tuple(one for one in self._unstored if one.sequence != event.sequence)
        if silence and not self._known:
            answers = self._engine.questions.answers
            fact = PolicySilenced(at_ms=0, sequence=sequence, answers=answers, words=silence)
            self._unstored += (fact,)
            self._marker.keep(fact)
            self._note(fact)
        self._known = silence
        self._marker.begin(sequence + 1, self._unstored)

    def batch_handled(self) -> None:
        """Do nothing: the fact is handed in at once."""
