"""Predictions from Python, about a graph file or about a network of torch.

    >>> import cotenant
    >>> prediction = cotenant.predict("mlp.onnx", device="cpu-standin", batch_size=64)
    >>> prediction.fits
    True
    >>> prediction.batch_size, prediction.memory_bytes < prediction.memory_bound_bytes
    (64, True)
    >>> cotenant.fits("mlp.onnx", device="cpu-standin", batch_size=64)
    True

A list of records is what a data frame is made of: `pandas.DataFrame([cotenant.predict(path, batch_size=size) ...])`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Final

from cotenant import programs
from cotenant.calibration_files import (
    UNREADABLE_REMEDY,
    device_at_hand,
    newest_calibration,
    unreadable_calibrations,
)
from cotenant.capture.captured_job import PROFILER, convert
from cotenant.capture.in_script.step_export import export_network
from cotenant.capture.in_script.step_window import tensors_of
from cotenant.cli.settings import point_at_state, resolve_settings, state_folder
from cotenant.client import PredictorClient, is_serving, job_settings, open_channel
from cotenant.client_errors import InputError, PermissionDeniedError
from cotenant.job_settings import BATCH_SIZE_MAX
from cotenant.memory_verdict import MemoryVerdict
from cotenant.prediction_questions import Answers, Questions, add_calibration, ask_offline, ask_service, hash_of
from cotenant.prediction_verdict import verdict_of
from cotenant.quantities import parse_bytes
from cotenant.system_clock import now_ms
from cotenant.v1 import prediction_pb2

GUESS_TIMEOUT_S: Final = 0.5
_NAMES: Final = {"device": "a100", "optimizer": "adam", "precision": "bf16", "device_memory": "40GiB"}
_EXAMPLE: Final = "e.g. predict(model, torch.randn(32, 3, 224, 224))"
_AS_CALLED: Final = (
    "give what it is called with, on its device: a tensor, a tuple of arguments, or a dictionary of names"
)
_FROM_META: Final = 'call model.to_empty(device="cpu") first: the numbers in it are not looked at'
_TORCH_TRACES: Final = "torch._subclasses.fake_tensor"
"""It logs a traceback for every network that does not take its inputs."""
_BY_HAND: Final = "export it by hand (docs/training_scripts.md), and give the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What training at one batch size needs on one device.

    Attributes:
        device: Its type, as it was understood.
        batch_size: Samples of one optimizer step.
        memory_bytes: Expected peak of device memory.
        memory_bound_bytes: The 99 % bound of it, or how far off it may be where the range was not calibrated.
        step_ms: Expected length of one optimizer step.
        utilization_ratio: Expected utilization, 0 to 1.
        fits: Whether it fits: True = its bound does, False = not even the expected memory does; None = not known, as
            only the bound is larger than the device, or the device's memory is not known.
        verdict: The same in words: fits | may not fit | does not fit | unknown.
        largest_batch_size: Largest batch whose bound fits; 0 = none, None = not known.
        in_domain: Whether the memory was learned from jobs like this one.
        warnings: What makes it less certain, one sentence each.
    """

    device: str
    batch_size: int
    memory_bytes: int
    memory_bound_bytes: int
    step_ms: float
    utilization_ratio: float
    fits: bool | None
    verdict: str
    largest_batch_size: int | None
    in_domain: bool
    warnings: tuple[str, ...]


def predict(
    model_or_path: Any,  # noqa: ANN401 (a network of torch, which is not imported here, or a path)
    inputs: Any = None,  # noqa: ANN401 (a tensor, or what the network takes)
    *,
    device: str = "",
    batch_size: int | None = None,
    optimizer: str = "sgd",
    precision: str = "fp32",
    device_memory: str = "",
) -> Prediction:
    """Predicts what training needs; asks the predictor, or runs it here when none was configured and none is reachable.

    Args:
        model_or_path: An ONNX file, or a torch.nn.Module; its mode and its parameters stay as they are.
        inputs: For a module: an example tensor, a tuple of its arguments or a dictionary of named ones; samples
            lie in dimension 0.
        device: Device type, e.g. "h200"; empty = the setting `device`.
        batch_size: Samples of one optimizer step, 1 to 1,000,000; None = those of the inputs.
        optimizer: sgd | momentum | adam | adamw.
        precision: fp32 | tf32 | bf16 | fp16.
        device_memory: E.g. "40GiB", where the type's size is not known or not the usual; empty = the usual.

    Raises:
        CotenantError: The network, its inputs, a setting or the device is refused; the message says what and why.
    """
    texts = {"device": device, "optimizer": optimizer, "precision": precision, "device_memory": device_memory}
    _check_kinds(batch_size, texts)
    with tempfile.TemporaryDirectory(prefix="cotenant-export-") as folder:
        path = model_or_path
        if not isinstance(path, str | os.PathLike):
            path, found = _export(model_or_path, inputs, Path(folder))
            batch_size = found if batch_size is None else batch_size
        if batch_size is None:
            raise InputError("no batch size is given", remedy="e.g. batch_size=64")
        request = prediction_pb2.PredictJobRequest(
            graph_sha256=hash_of(Path(path)),
            settings=job_settings(batch_size=int(batch_size), optimizer=optimizer, precision=precision),
            device=device or resolve_settings({}).settings.device,
            device_memory_bytes=parse_bytes(device_memory) if device_memory else 0,
            find_largest_batch_size=True,
        )
        passed_over = _calibrate(request)
        answer = _ask(Questions(graphs=[Path(path)], jobs=[request])).jobs[0]
    return _as_record(request, answer, passed_over)


def fits(model_or_path: Any, inputs: Any = None, **settings: Any) -> bool | None:  # noqa: ANN401 (as above)
    """Tells whether a job fits on a device that it has for itself; None = not known, see `Prediction.fits`.

    Arguments and errors are those of `predict`.
    """
    return predict(model_or_path, inputs, **settings).fits


def _calibrate(request: prediction_pb2.PredictJobRequest) -> list[str]:
    """Adds what was measured of the device at hand, as `cotenant predict` does; returns what is passed over."""
    folder = state_folder(resolve_settings({}).settings)
    if not request.device_memory_bytes:
        request.device = device_at_hand(folder, request.device, now_ms())
    found = newest_calibration(folder, request.device, now_ms())
    add_calibration(request, found[1] if found else None)
    errors = unreadable_calibrations(folder, now_ms())
    return [f"a calibration is passed over: {error.message}; {UNREADABLE_REMEDY}" for error in errors[:1]]


def _check_kinds(batch_size: object, texts: Mapping[str, object]) -> None:
    """Refuses what is no whole number or no name, such as torch's own types, before time goes into an export.

    Raises:
        InputError: One is refused.
    """
    # A column of a data frame holds whole numbers of numpy.
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, Integral)):
        raise InputError(f"batch_size={batch_size!r} is no whole number", remedy="e.g. batch_size=64")
    if batch_size is not None and not 1 <= int(batch_size) <= BATCH_SIZE_MAX:
        raise InputError(f"batch_size={batch_size} is not from 1 to {BATCH_SIZE_MAX:,}", remedy="e.g. batch_size=64")
    for name, text in texts.items():
        if not isinstance(text, str):
            raise InputError(f"{name}={text!r} is no text", remedy=f"e.g. {name}={_NAMES[name]!r}")


def _export(model: Any, inputs: Any, folder: Path) -> tuple[Path, int]:  # noqa: ANN401
    torch = sys.modules.get("torch")
    if isinstance(model, type):
        raise InputError(f"{model.__name__} is a class", remedy=f"make a network of it, e.g. {model.__name__}(...)")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise InputError(f"{type(model).__name__} is neither a path nor a torch.nn.Module", remedy="give one of them")
    if inputs is None:
        raise InputError("a network needs example inputs", remedy=_EXAMPLE)
    if any(each.is_meta for each in model.parameters()):
        raise InputError("the network's weights are on the device meta, which holds none", remedy=_FROM_META)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    args = () if named else inputs if isinstance(inputs, tuple) else (inputs,)
    tensors = tensors_of(torch, (args, named))
    if not tensors:
        raise InputError(f"no tensor is among the inputs ({type(inputs).__name__})", remedy=_EXAMPLE)
    if not all(each.numel() for each in tensors):
        raise InputError("the inputs hold no sample", remedy=_EXAMPLE)
    programs.require_programs("`cotenant.predict` of a module", [PROFILER])
    modes = [(part, part.training) for part in model.modules()]
    try:
        with _silent(_TORCH_TRACES):
            batch_size = export_network(torch, model, args, named, folder)
    except Exception as error:  # whatever torch.export has against a network
        raise _refusal(torch, model, args, named, error) from error
    finally:
        for part, was_training in modes:
            part.training = was_training
    graph = folder / "graph.onnx"
    graph.write_bytes(convert(folder, str(torch.__version__)))
    return graph, batch_size


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keeps a logger from telling what is told here in one sentence."""
    logger = logging.getLogger(name)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def _refusal(torch: Any, model: Any, args: Any, named: Mapping[str, Any], error: Exception) -> InputError:  # noqa: ANN401
    """Tells a network that does not run on its inputs from one that runs and cannot be exported."""
    try:
        with torch.no_grad():
            model(*args, **named)
    except Exception as failure:
        return InputError(f"the network does not run on these inputs here: {_first_line(failure)}", remedy=_AS_CALLED)
    return InputError(f"torch.export refused the network: {_first_line(error)}", remedy=_BY_HAND)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:300]


def _ask(questions: Questions) -> Answers:
    resolved = resolve_settings({})
    options = resolved.settings.channel_options(resolved.settings.predictor)
    channel = open_channel(options)
    is_guessed = resolved.is_default("predictor")
    if not is_guessed or is_serving(channel, timeout_s=GUESS_TIMEOUT_S):
        client = PredictorClient(
            channel, address=options.address, timeout_s=resolved.settings.timeout_s, tls=options.tls_files()
        )
        try:
            return ask_service(questions, client)
        except PermissionDeniedError:
            # The usual port may be that of another user's `cotenant up`.
            if not is_guessed:
                raise
    point_at_state()
    return ask_offline(questions)


def _as_record(
    request: prediction_pb2.PredictJobRequest, answer: prediction_pb2.PredictJobResponse, passed_over: Sequence[str]
) -> Prediction:
    verdict = verdict_of(answer)
    has_largest = answer.HasField("largest_batch_size_that_fits")
    return Prediction(
        device=answer.device or request.device,
        batch_size=request.settings.global_batch_size,
        memory_bytes=int(answer.memory_bytes.value),
        memory_bound_bytes=int(answer.memory_bytes.upper_99),
        step_ms=answer.step_ms.value,
        utilization_ratio=answer.utilization_ratio.value,
        fits={MemoryVerdict.FITS: True, MemoryVerdict.DOES_NOT_FIT: False}.get(verdict),
        verdict=verdict.value,
        largest_batch_size=answer.largest_batch_size_that_fits if has_largest else None,
        in_domain=answer.memory_bytes.in_domain,
        warnings=(*(warning.message for warning in answer.warnings), *passed_over),
    )
