"""Hands tasks and actors in; one thread of the process watches over all of them."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import re
import secrets
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from cotenant import system_clock
from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.job_tag import FIRST_WORD, TAG_CHARACTERS_MAX, read_tag
from cotenant.engines.ray.connection import ConnectedRay
from cotenant.errors import InputError
from cotenant.ray.attempts import RayAttempts, Work
from cotenant.ray.shared_jobs import JobWatch, SharedJob

POLL_MS: Final = 500
REMOTE_FUNCTION: Final = "_function"
"""Where Ray keeps the function that `ray.remote` was given."""
_NAME_CHARACTERS_MAX: Final = 48
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


class _Watching:
    """The watch of this process, from its first job on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watch: JobWatch | None = None
        self._connected: ConnectedRay | None = None

    def watch(self) -> JobWatch:
        """Return it; a process that has connected to Ray anew gets another one."""
        connected = ConnectedRay.joined()
        with self._lock:
            if self._watch is None or self._connected is None or not self._connected.is_current():
                if self._watch is None:
                    # Runs before Ray's own: the GPUs of a process that ends are free at once.
                    atexit.register(self._leave)
                self._connected, self._watch = connected, JobWatch(connected, RayAttempts(connected))
                arguments = (self._watch, connected.held_open)
                threading.Thread(target=advance_for_ever, args=arguments, name="cotenant-jobs", daemon=True).start()
            return self._watch

    def _leave(self) -> None:
        if self._watch is not None and self._connected is not None and self._connected.is_current():
            self._watch.leave("the program that submitted it has ended", is_connected=True)


_watching = _Watching()


def submit(wishes: str, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> SharedJob:  # noqa: ANN401 (whatever the function takes)
    """Run a function on a GPU, or on a part of one, as soon as cotenant says which.

    Args:
        wishes: Pairs as in docs/ray.md, e.g. "memory=8GiB utilization=0.4 slowdown=0.15"; empty = a whole GPU.
        function: Runs in a process of its own, with CUDA_VISIBLE_DEVICES of its GPU. Or what `ray.remote` makes of one;
            GPUs and CPUs that it asks for do not count.
        arguments: Handed to it, as all that follow.
        keywords: Likewise.

    Raises:
        InputError: A pair is wrong, it is a class, or this process is not connected to Ray.
        EngineUnreachableError: Ray does not answer.
    """
    target = function_of(function)
    return _hand_in(wishes, Work(target=target, is_task=True, arguments=arguments, keywords=keywords))


def start(wishes: str, actor_class: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> SharedJob:  # noqa: ANN401 (whatever the class takes)
    """Make an actor on a GPU, or on a part of one, as soon as cotenant says which; `SharedJob.actor` waits for it.

    Args:
        wishes: As for `submit`.
        actor_class: A class, or what `ray.remote` makes of one. GPUs and CPUs that it asks for do not count.
        arguments: Of its constructor, as all that follow.
        keywords: Likewise.

    Raises:
        InputError: As `submit`, or it is a function.
        EngineUnreachableError: As `submit`.
    """
    if inspect.isroutine(actor_class) or hasattr(actor_class, REMOTE_FUNCTION):
        raise InputError(f"{_name_of(actor_class)} is a function, no class", remedy="use cotenant.ray.submit for it")
    return _hand_in(wishes, Work(target=actor_class, is_task=False, arguments=arguments, keywords=keywords))


def function_of(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs as a task: of what `ray.remote` made of a function that function, which alone can be called.

    Raises:
        InputError: It is a class.
    """
    if inspect.isclass(target) or (hasattr(target, "remote") and not hasattr(target, REMOTE_FUNCTION)):
        raise InputError(f"{_name_of(target)} is a class, no function", remedy="use cotenant.ray.start for it")
    found: Callable[..., Any] = getattr(target, REMOTE_FUNCTION, target)
    return found


def tag_of(wishes: str) -> str:
    """Return the line that stands for some wishes.

    Raises:
        InputError: A pair is wrong, which a bridge would only pass over.
    """
    tag = f"{FIRST_WORD} {wishes}".strip()
    read = read_tag(tag)
    if read is None or read.complaints:
        complaints = "; ".join(read.complaints) if read else f"more than {TAG_CHARACTERS_MAX} characters"
        raise InputError(f"wishes {wishes[:200]!r}: {complaints}", remedy="write pairs such as memory=8GiB")
    return tag


def job_id_of(target: object) -> str:
    """Return a new name for a job, after its function or class."""
    name = _NO_NAME.sub("-", _name_of(target)).strip("-.")
    return f"{name[:_NAME_CHARACTERS_MAX] or 'job'}-{secrets.token_hex(4)}"


def _name_of(target: object) -> str:
    return str(getattr(target, "__name__", "") or type(target).__name__)


def _hand_in(wishes: str, work: Work) -> SharedJob:
    tag = tag_of(wishes)
    return _watching.watch().add(job_id_of(work.target), tag, work, now_ms=system_clock.now_ms())


def advance_for_ever(watch: JobWatch, held_open: Callable[[], AbstractContextManager[bool]]) -> None:
    """Look at the jobs twice a second until this process has left the cluster; what it still had is given up then.

    Args:
        watch: Has the jobs.
        held_open: Keeps the connection for the time of one look; its value says whether there still is one.
    """
    while True:
        with held_open() as is_connected:
            if not is_connected:
                break
            # It is asked again: a head that is started anew has the jobs' records again with their next beat.
            with contextlib.suppress(EngineUnreachableError):
                watch.advance(system_clock.now_ms())
        system_clock.wait_ms(POLL_MS)
    watch.leave("this process has left the Ray cluster", is_connected=False)
