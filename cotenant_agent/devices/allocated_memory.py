"""What a job says that it has allocated, sample by sample, and the states of its memory that follow from it.

A caching allocator keeps what was freed, so that the memory of a process shows no low state; what is allocated does,
for a job that also gives its cache back. Everything that its processes hold besides (a context, libraries) is in both
states. Pure.

Source:
    The triple of Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning
    clusters" (JPDC), section 3.2, which does not say how gamma is told from delta.
"""

from __future__ import annotations

from collections import deque

from cotenant_agent.records import MemoryStates

SAMPLES_MAX = 2_400
"""Two minutes at twenty samples a second."""
SAMPLES_MIN = 100
EXTRA_RATIO_MIN = 0.05
"""A job whose peaks are lower than that, as a share of the highest, does not release memory."""


class AllocatedMemory:
    """The newest samples of one attempt."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._highest_since = -1
        self.peak_bytes = 0

    def add(self, allocated_bytes: int) -> None:
        """Take a sample in."""
        self._samples.append(allocated_bytes)
        self._highest_since = max(self._highest_since, allocated_bytes)
        self.peak_bytes = max(self.peak_bytes, allocated_bytes)

    def observe(self, processes_peak_bytes: int) -> tuple[MemoryStates | None, int | None]:
        """Return the states, and the most since the last call; None = not known, or no sample since.

        Args:
            processes_peak_bytes: The most that its processes held: what is above the samples is held besides.
        """
        besides_bytes = max(processes_peak_bytes - self.peak_bytes, 0)
        highest_bytes, self._highest_since = self._highest_since, -1
        return self.states(besides_bytes), highest_bytes + besides_bytes if highest_bytes >= 0 else None

    def states(self, besides_bytes: int) -> MemoryStates | None:
        """Return what the job holds all the time and what at its peaks; None = too few samples, or no low state.

        The low state ends where most memory is left to others: the room above it times the share of time below it.

        Args:
            besides_bytes: What its processes hold besides.
        """
        found = sorted(self._samples)
        if len(found) < SAMPLES_MIN:
            return None
        rooms = ((found[-1] - low) * (place + 1) for place, low in enumerate(found))
        best = max(enumerate(rooms), key=lambda item: item[1])[0]
        low_bytes, extra_bytes = found[best], found[-1] - found[best]
        if extra_bytes < EXTRA_RATIO_MIN * (found[-1] + besides_bytes):
            return None
        return MemoryStates(
            low_bytes=low_bytes + besides_bytes,
            extra_bytes=extra_bytes,
            high_state_ratio=1.0 - (best + 1) / len(found),
        )
