"""pairs: what running jobs have shown of each other, by harm."""

from __future__ import annotations

import click

from cotenant import quantities, system_clock
from cotenant.cli.formats import emit_message
from cotenant.cli.session import Session, show, tell, with_session
from cotenant.cli.tables import Column, Row, render_table
from cotenant.client_errors import ServiceError
from cotenant.device_sharing import DeviceSharing
from cotenant.v1 import prediction_pb2

KEY_LENGTH = 8
"""Of a key on a terminal that is too narrow for two whole ones beside all else."""
_WIDTH_OF_WHOLE_KEYS = 240
_WAYS = {DeviceSharing.TIME_SLICING: "", DeviceSharing.MPS: " MPS", DeviceSharing.UNSTATED: " any way"}
HARMFUL_RATIO = 0.2
"""What jobs accept by default."""
_NONE_YET = (
    "no pair was measured yet; it takes a job that ran alone and then with one co-located job, for some seconds each, "
    "on a device without other users (`cotenant profiles status` counts what could not be used)"
)
_COLUMNS = (
    Column(title="VICTIM", shrinks=True),
    Column(title="CO-LOCATED", shrinks=True),
    Column(title="MEASURED", right=True),
    Column(title="NINE OF TEN", right=True),
    Column(title="TIMES", right=True),
    Column(title="SEEN", right=True),
    Column(title="DEVICE", wraps=True),
)


@click.command(epilog="Example:  cotenant pairs --device 'NVIDIA H200' -o json")
@click.option("--device", default="", help="Of this device type only.")
@click.option("--limit", type=click.IntRange(min=1), metavar="ROWS", help="The most harmful ones only.")
@with_session
def pairs(session: Session, /, device: str, limit: int | None) -> None:
    """List pairs of jobs that were measured co-located, the most harmful first.

    MEASURED is the average slowdown of VICTIM by the co-located job, NINE OF TEN where so many of its windows lie. What
    is expected next time, which weighs these against all else that is known, is what predict and explain say. Jobs are
    named by their keys (equal graph and settings = equal key), and by name where the scheduler still knows one. MPS
    stands behind DEVICE where the two shared it that way, "any way" where some windows do not say it and all are taken.
    """
    found = session.predictor().list_measured_pairs(device)
    found.sort(
        key=lambda pair: (-pair.slowdown_ratio, pair.device, pair.victim_job_key, pair.other_job_key, pair.sharing)
    )
    found = found[:limit]
    if not session.output.is_for_people:
        names = [f"{pair.victim_job_key}/{pair.other_job_key}" for pair in found]
        emit_message(prediction_pb2.ListMeasuredPairsResponse(pairs=found), session.output, names=names)
        return
    job_names, at_ms = _job_names(session) if found else {}, system_clock.now_ms()
    length = KEY_LENGTH if session.width < _WIDTH_OF_WHOLE_KEYS else None
    show(render_table(_COLUMNS, [_pair_row(pair, job_names, at_ms, length) for pair in found], session.width))
    if not found:
        tell(_NONE_YET)


def _job_names(session: Session) -> dict[str, str]:
    """Returns names by job key; without a scheduler there are none."""
    try:
        return {job.job_key: job.spec.name for job in session.scheduler().list_jobs() if job.job_key and job.spec.name}
    except ServiceError:
        return {}


def _pair_row(pair: prediction_pb2.MeasuredPair, job_names: dict[str, str], at_ms: int, key_length: int | None) -> Row:
    seen = f"{quantities.format_duration(at_ms - pair.newest_at_ms)} ago" if pair.newest_at_ms else "-"
    interval = f"{quantities.format_slowdown(pair.lower)} .. {quantities.format_slowdown(pair.upper)}"
    cells = [
        _job_text(pair.victim_job_key, pair.victim_global_batch_size, job_names, key_length),
        _job_text(pair.other_job_key, pair.other_global_batch_size, job_names, key_length),
        quantities.format_slowdown(pair.slowdown_ratio),
        interval,
        str(pair.times_measured),
        seen,
        pair.device + _WAYS[DeviceSharing(pair.sharing)],
    ]
    return Row(cells=cells, styles=((2, "red" if pair.slowdown_ratio > HARMFUL_RATIO else ""),))


def _job_text(key: str, batch: int, job_names: dict[str, str], key_length: int | None) -> str:
    name = job_names.get(key) or key[:key_length]
    return f"{name} x{batch}" if batch else name
