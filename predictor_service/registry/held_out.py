"""What a version predicted of rows whose groups it was not shown, row by row.

Kept with the version, so that a later one can be compared with it on the very same rows, each predicted without its
group by both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from predictor_service.errors import ModelError

HELD_OUT_FILE: Final = "held_out.json"
SCHEMA: Final = "cotenant.held_out/1"
_JOBS: Final = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRows:
    """Rows of one target of one device type; all tuples are as long, but for `jobs`.

    Attributes:
        row_ids: See `name_row`.
        measured: In the target's unit.
        predicted: Same, by a model that has not seen the row's groups.
        groups: Families of each row.
        jobs: What was measured, whatever the value: see `name_jobs`. Empty where that was not kept.
    """

    row_ids: tuple[str, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    groups: tuple[tuple[str, ...], ...]
    jobs: tuple[str, ...] = ()


HeldOut = Mapping[str, Mapping[str, HeldOutRows]]
"""By device type, then by target name."""


def name_row(device: str, target: str, job_keys: Sequence[str], measured: float) -> str:
    """Names a measured row by its content: the same job with another value is another row.

    Returns:
        16 hexadecimal digits of a SHA-256.
    """
    return _digest(device, target, *job_keys, f"{measured:.9g}")


def name_jobs(device: str, target: str, job_keys: Sequence[str]) -> str:
    """Names what is measured by the jobs alone: what runs again every week is measured anew every week.

    Returns:
        16 hexadecimal digits of a SHA-256.
    """
    return _digest(device, target, *job_keys)


def _digest(*words: str) -> str:
    return hashlib.sha256("|".join(words).encode()).hexdigest()[:16]


def held_out_to_json(held_out: HeldOut) -> str:
    """Writes rows; `held_out_from_json` restores them."""
    content = {
        device: {
            # Jobs are left out where they are not kept: versions of before keep their files.
            target: {
                name: value
                for name in HeldOutRows.__dataclass_fields__
                if (value := getattr(rows, name)) or name != _JOBS
            }
            for target, rows in targets.items()
        }
        for device, targets in held_out.items()
    }
    return json.dumps({"schema": SCHEMA, "devices": content}, sort_keys=True)


def held_out_from_json(text: str) -> HeldOut:
    """Reads what `held_out_to_json` wrote.

    Raises:
        ModelError: Another schema, or damaged.
    """
    try:
        read = json.loads(text)
        if read["schema"] != SCHEMA:
            raise ModelError(f"held-out rows have schema {read['schema']!r}", remedy="train again")
        return {
            device: {
                target: HeldOutRows(
                    row_ids=tuple(rows["row_ids"]),
                    measured=tuple(rows["measured"]),
                    predicted=tuple(rows["predicted"]),
                    groups=tuple(tuple(names) for names in rows["groups"]),
                    jobs=tuple(rows.get(_JOBS, ())),
                )
                for target, rows in targets.items()
            }
            for device, targets in read["devices"].items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"held-out rows are damaged ({error})", remedy="train again") from error
