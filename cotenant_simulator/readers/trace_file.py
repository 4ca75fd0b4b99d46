"""Any trace file: its format is recognised by its contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.event_log import is_event_log, read_event_log
from cotenant_simulator.readers.gavel import read_gavel
from cotenant_simulator.readers.generated import read_generated
from cotenant_simulator.readers.job_lists import (
    read_alibaba,
    read_elasticflow,
    read_muri,
    read_philly,
    read_tiresias,
)
from cotenant_simulator.readers.pollux import read_pollux
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.rows import read_header
from cotenant_simulator.truth.trace import Trace

_SHOWN_CHARACTERS_MAX = 300
Reader = Callable[[Path, Consent], Trace]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format.

    Attributes:
        columns: A CSV file with all of these is of this format.
        read: Reads it.
    """

    columns: frozenset[str]
    read: Reader


_OWN_COLUMNS = ("submit_time_s", "duration_s", "num_gpus")
FORMATS: Mapping[str, Format] = {
    "muri": Format(columns=frozenset({"iteration_time_ms", "stage0_ms"}), read=read_muri),
    "tiresias": Format(columns=frozenset({"num_gpu", "iterations", "duration_s"}), read=read_tiresias),
    "philly": Format(columns=frozenset({"submit_time", "virtual_cluster"}), read=read_philly),
    "alibaba-gpu-2023": Format(columns=frozenset({"gpu_milli"}), read=read_alibaba),
    "gavel": Format(columns=frozenset({"total_steps", "slo"}), read=read_gavel),
    "pollux": Format(columns=frozenset({"application", "batch_size", "num_gpus"}), read=read_pollux),
    "elasticflow-itp": Format(columns=frozenset(_OWN_COLUMNS), read=read_elasticflow),
}
"""By name; the first whose columns are all there."""


def read_trace(path: Path, consent: Consent, *, seed: int | None = None, profiles: Path | None = None) -> Trace:
    """Read a trace of any format.

    Args:
        path: The file.
        consent: What owners consent to, where the trace does not contain it.
        seed: Of workloads that are drawn; None = their file's own.
        profiles: Folder of the measured profiles of a workload of the Pollux family; None = found above it.

    Raises:
        TraceError: It cannot be read, is of no known format, or profiles are named for one that has none.
    """
    trace = _read(path, consent, seed, profiles)
    if profiles is not None and trace.format != "pollux":
        raise TraceError(path, f"is of the format {trace.format}, which has no profiles; leave --profiles out")
    return trace


def is_drawn(path: Path) -> bool:
    """Return whether another seed makes another workload of a file."""
    return path.suffix == ".toml"


def _read(path: Path, consent: Consent, seed: int | None, profiles: Path | None) -> Trace:
    if not path.is_file():
        raise TraceError(path, "is no file; name a trace (docs/simulate.md lists the formats)")
    if is_drawn(path):
        return read_generated(path, consent, seed=seed)
    if is_event_log(path):
        return read_event_log(path)
    header = frozenset(read_header(path))
    for name, form in FORMATS.items():
        if form.columns <= header:
            return read_pollux(path, consent, profiles=profiles) if name == "pollux" else form.read(path, consent)
    raise TraceError(
        path,
        f"is of no known format; its columns are {_shown(header)}; known are {', '.join(FORMATS)} (docs/simulate.md); "
        f"a list of your own needs {', '.join(_OWN_COLUMNS)}",
    )


def fingerprint(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        digest = sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _shown(header: frozenset[str]) -> str:
    names = ", ".join(sorted(header))
    names = f"{names[:_SHOWN_CHARACTERS_MAX]} ..." if len(names) > _SHOWN_CHARACTERS_MAX else names
    if len(header) > 1:
        return names
    if "|" in names:
        return f"{names} (of Slurm's sacct? `cotenant shadow` reads that)"
    return f"{names} (parted by something else than commas?)"
