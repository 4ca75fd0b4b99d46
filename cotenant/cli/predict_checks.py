"""What of a question can be wrong is found before a script is captured for it: a capture takes seconds to minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cotenant.cli.predict_questions import device_memory_bytes, find_calibration, is_unconfigured, setting_flags
from cotenant.cli.session import Session
from cotenant.cli.settings import point_at_state
from cotenant.client import job_settings
from cotenant.client_errors import InputError, NotFoundError
from cotenant.prediction_questions import NO_SUCH_GRAPH, Questions, ask_offline
from cotenant.v1 import prediction_pb2

_NOBODYS_GRAPH: Final = "0" * 64
"""The only thing wrong with a question that is otherwise right."""


def check_before_capture(
    session: Session, devices: Sequence[str], batch_sizes: Sequence[int | None], flags: Mapping[str, Any]
) -> None:
    """Asks everything but the graph: about a graph that does not exist.

    Args:
        session: Names the predictor.
        devices: Device types that are asked about.
        batch_sizes: None = what the capture will say.
        flags: Of `predict`.

    Raises:
        CotenantError: Whatever the question would be refused for after the capture; or no predictor can be reached.
    """
    given = {name: value for name, value in setting_flags(flags).items() if value is not None}
    settings = job_settings(**given, batch_size=next((size for size in batch_sizes if size), _least_batch(flags)))
    requests = [
        prediction_pb2.PredictJobRequest(
            graph_sha256=_NOBODYS_GRAPH,
            settings=settings,
            device=device,
            device_memory_bytes=device_memory_bytes(flags),
        )
        for device in devices
    ]
    for device in devices:
        find_calibration(session, flags["calibration_file"], device)
    is_offline = flags["offline"] or is_unconfigured(session, says_so=False)
    for request in requests:
        _ask(session, request, is_offline=is_offline)


def _least_batch(flags: Mapping[str, Any]) -> int:
    return max(flags["micro_batch_sizes"], default=1)


def _ask(session: Session, request: prediction_pb2.PredictJobRequest, *, is_offline: bool) -> None:
    try:
        if is_offline:
            point_at_state()
            ask_offline(Questions(graphs=[], jobs=[request]))
        else:
            session.predictor().predict_job(request)
    except NotFoundError:
        return
    except InputError as error:
        if error.reason != NO_SUCH_GRAPH:
            raise
