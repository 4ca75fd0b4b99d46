"""What living jobs of one key share: what the predictor is asked about once for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cotenant.job_settings import JobSettings
from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.copied_record import CopiedRecord
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import Share


@dataclass(frozen=True, kw_only=True)
class KeyUse(CopiedRecord):
    """What living jobs share under one key.

    Attributes:
        jobs: Living jobs with this key.
        global_batch_size: The largest among them.
        gpus: GPU counts asked for.
        may_share: At least one of them ever consented to sharing, so that pairs are worth asking about.
        move_ms: What a move cost the one of them that was moved last; 0 = none was.
    """

    graph_sha256: str
    settings: JobSettings | None
    jobs: int = 0
    global_batch_size: int = 1
    gpus: tuple[int, ...] = ()
    may_share: bool = False
    move_ms: int = 0


def with_job(use: KeyUse | None, job: JobRecord) -> KeyUse:
    """Return what living jobs share under a key once this one is among them."""
    use = use or KeyUse(graph_sha256=job.submission.graph_sha256, settings=job.submission.settings)
    return use.changed(
        jobs=use.jobs + 1,
        global_batch_size=max(use.global_batch_size, job.request.global_batch_size),
        gpus=tuple(sorted({*use.gpus, job.request.gpus, *job.request.allowed_gpus})),
        may_share=use.may_share or job.request.share is not Share.NEVER,
    )


def without_job(use: KeyUse) -> KeyUse:
    """Return what living jobs share under a key once one of them has ended; what it brought stays."""
    return use.changed(jobs=use.jobs - 1)


class KeyUses:
    """The keys with a graph that living jobs use, kept up to date by the state that owns them.

    Args:
        changes: Of the predictions.

    Attributes:
        living: What is shared under each of these keys.
    """

    def __init__(self, changes: ChangeLog) -> None:
        self._changes = changes
        self._living: dict[str, KeyUse] = {}
        self.living: Mapping[str, KeyUse] = MappingProxyType(self._living)
        self._sharing_began = 0
        self._pairs_known: dict[str, dict[str, tuple[int, int]]] = {}

    def load(self, living: Mapping[str, KeyUse]) -> None:
        """Replace what was counted while loading by what was counted in life."""
        self._living.clear()
        self._living.update(living)

    def add(self, job: JobRecord) -> None:
        """Count a job that has come."""
        key = job.request.key
        if not key or not job.submission.graph_sha256:
            return
        before = self._living.get(key)
        self._living[key] = use = with_job(before, job)
        self._sharing_began += use.may_share and (before is None or not before.may_share)

    def end(self, key: str) -> None:
        """Count a job of a key that has ended."""
        use = self._living.get(key)
        if use is None:
            return
        if use.jobs == 1:
            del self._living[key]
            self._pairs_known.pop(key, None)
        else:
            self._living[key] = without_job(use)

    def note_sharing(self, key: str) -> bool:
        """Note that a waiting job of a key consents to share by now; True where no other one of it did."""
        use = self._living.get(key)
        if use is None or use.may_share:
            return False
        self._living[key] = use.changed(may_share=True)
        self._sharing_began += 1
        return True

    def note_move(self, job: JobRecord) -> None:
        """Note what a move has cost a job, for others of its key."""
        use = self._living.get(job.request.key)
        if use is not None:
            self._living[job.request.key] = use.changed(move_ms=job.moves.move_ms)

    def move_ms_of(self, key: str) -> int:
        """Return what a move cost a living job of this key; 0 = not known."""
        use = self._living.get(key)
        return use.move_ms if use is not None else 0

    def knows_all_pairs(self, key: str, device: str) -> bool:
        """Say whether a key was found to have no unknown pair on a device, and nothing has come since."""
        return self._pairs_known.get(key, {}).get(device) == (self._changes.count, self._sharing_began)

    def note_all_pairs_known(self, key: str, device: str) -> None:
        """Note that nothing is unknown of a living key's pairs with the others now."""
        self._pairs_known.setdefault(key, {})[device] = self._changes.count, self._sharing_began
