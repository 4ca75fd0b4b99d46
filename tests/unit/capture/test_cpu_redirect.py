"""Scripts that name a GPU in any of the usual ways run on the CPU."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cotenant.capture.in_script.absent_gpu import Event, Ignored, _register_kinds
from cotenant.capture.in_script.cpu_redirect import (
    QUIET_CUDA_CALLS,
    ZERO_CUDA_CALLS,
    Requested,
    _device_mode,
    _make_for_the_cpu,
    _quieten_cuda,
    _watch_autocast,
    _watch_scaler,
)

WAYS: dict[str, Callable[[], Tensor]] = {
    "a module by the number of a process": lambda: nn.Linear(2, 2).to(0).weight,
    "a module by name and kind": lambda: nn.Linear(2, 2).to("cuda:1", torch.float64).weight,
    "a module by number and kind": lambda: nn.Linear(2, 2).to(1, torch.float64).weight,
    "a module by keyword": lambda: nn.Linear(2, 2).to(device=0).weight,
    "a layer made there": lambda: nn.Linear(2, 2, device=0).weight,
    "a tensor by number": lambda: torch.ones(2).to(0),
    "a tensor by number and kind": lambda: torch.ones(2).to(0, torch.float64),
    "a tensor by keyword": lambda: torch.ones(2).to(device=1),
    "a tensor made there": lambda: torch.zeros(2, device=0),
    "a tensor on a device by number": lambda: torch.zeros(2, device=torch.device(0)),
    "a tensor on a device by name and number": lambda: torch.zeros(2, device=torch.device("cuda", 1)),
    "a tensor on a device by keywords": lambda: torch.zeros(2, device=torch.device(type="cuda", index=1)),
    "a tensor on a device of a device": lambda: torch.zeros(2, device=torch.device(torch.device("cuda:0"))),
    "a tensor moved to a device by number and kind": lambda: torch.ones(2).to(torch.device(0), torch.float64),
    "a tensor made alike there": lambda: torch.zeros_like(torch.ones(2), device=1),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_that_is_named_in_any_way_becomes_the_cpu(way: str) -> None:
    requested = Requested()
    with _device_mode(torch, requested):
        made = WAYS[way]()
    assert made.device.type == "cpu"
    assert made.dtype is (torch.float64 if "kind" in way else torch.float32)
    assert requested.cuda_named


CUDA: Any = torch.cuda
REPLACED = (
    "Event", "Stream", "ExternalStream", "stream", "device", "device_of", "current_stream", "default_stream",
    "get_device_name", "get_device_properties", "get_device_capability", "mem_get_info", "memory_summary",
)  # fmt: skip
OF_NVTX = ("range_push", "range_pop", "range_start", "range_end", "mark")


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> Requested:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for owner, names in ((torch.cuda, (*QUIET_CUDA_CALLS, *ZERO_CUDA_CALLS, *REPLACED)), (torch.cuda.nvtx, OF_NVTX)):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(torch, "set_default_device", torch.set_default_device)
    monkeypatch.setattr(torch.Tensor, "record_stream", torch.Tensor.record_stream)
    requested = Requested()
    _quieten_cuda(torch, requested)
    return requested


@pytest.mark.parametrize("has_gpu", [False, True])
def test_the_script_is_told_of_a_gpu_only_where_it_ends_without_one_and_torch_never_is(
    has_gpu: bool, without_gpu: Requested
) -> None:
    without_gpu.has_gpu = has_gpu
    as_torch = eval("lambda: (cuda.is_available(), cuda.device_count())", {"__name__": "torch.amp", "cuda": CUDA})
    assert as_torch() == (False, 0)
    assert not without_gpu.cuda_asked
    assert (CUDA.is_available(), CUDA.device_count()) == (has_gpu, int(has_gpu))
    assert without_gpu.cuda_asked


def prefetched(batches: list[Tensor]) -> list[Tensor]:
    """Copies on a stream of its own, as the prefetcher of many scripts does."""
    stream, found = CUDA.Stream(), []
    for batch in batches:
        with CUDA.stream(stream):
            moved = batch.to("cuda", non_blocking=True)
        CUDA.current_stream().wait_stream(stream)
        moved.record_stream(CUDA.current_stream())
        found.append(moved)
    return found


def test_streams_events_and_marks_of_a_gpu_do_nothing_where_there_is_none(without_gpu: Requested) -> None:
    with _device_mode(torch, without_gpu), CUDA.device(0):
        begin, end = CUDA.Event(enable_timing=True), CUDA.Event(enable_timing=True)
        begin.record()
        CUDA.nvtx.range_push("step")
        assert [each.device.type for each in prefetched([torch.ones(2)])] == ["cpu"]
        CUDA.nvtx.range_pop()
        end.record(CUDA.current_stream())
        assert 2 / begin.elapsed_time(end) > 0
    assert not without_gpu.cuda_asked


def test_stand_ins_are_events_and_streams_for_an_older_torch_whose_compiler_insists_on_it() -> None:
    # Until 2.4 the first optimizer imports the compiler, which checks both.
    kinds = SimpleNamespace(_EventBase=type("_EventBase", (ABC,), {}), _StreamBase=type("_StreamBase", (ABC,), {}))
    _register_kinds(SimpleNamespace(_streambase=kinds))
    assert (issubclass(Event, kinds._EventBase), issubclass(Ignored, kinds._StreamBase)) == (True, True)
    _register_kinds(SimpleNamespace())


def test_a_script_that_asks_a_gpu_for_its_facts_gets_some_and_is_noted(without_gpu: Requested) -> None:
    free_bytes, total_bytes = CUDA.mem_get_info(0)
    properties = CUDA.get_device_properties(torch.device("cuda:0"))
    assert 0 < free_bytes <= total_bytes == properties.total_memory
    assert (properties.major, properties.minor) == CUDA.get_device_capability()
    assert without_gpu.cuda_asked


def test_the_default_device_may_be_a_gpu_by_its_number(without_gpu: Requested) -> None:
    for device in (0, "cuda", torch.device("cuda:1")):
        torch.set_default_device(device)
        assert torch.zeros(2).device.type == "cpu"


def test_numbers_that_are_no_devices_stay() -> None:
    requested = Requested()
    with _device_mode(torch, requested):
        assert torch.device("cpu").type == torch.device(torch.device("cpu")).type
        assert torch.device("meta", 0).type == torch.ones(2, device="meta").device.type
        assert torch.ones(2, 3).sum(0).shape == (3,)
        assert nn.Linear(2, 2).to(torch.float64).weight.dtype is torch.float64
    assert not requested.cuda_named


@pytest.fixture
def made_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "Generator", torch.Generator)
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    _make_for_the_cpu(torch)


@pytest.mark.usefixtures("made_for_the_cpu")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0), "cpu"])
def test_a_generator_of_random_numbers_on_a_gpu_makes_them_on_the_cpu(device: Any) -> None:
    made = torch.Generator(device=device).manual_seed(7)
    assert torch.equal(torch.randn(3, generator=made), torch.randn(3, generator=torch.Generator(device).manual_seed(7)))
    assert isinstance(made, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert not isinstance("cpu", torch.Generator)


@pytest.mark.usefixtures("made_for_the_cpu")
@pytest.mark.parametrize("has_own_group", [True, False])
def test_an_optimizer_that_a_cuda_graph_is_to_record_steps_on_the_cpu(has_own_group: bool) -> None:
    network = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(network.parameters(), capturable=True)
    if has_own_group:
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    network(torch.ones(1, 2)).sum().backward()
    # Without the hooks of recorders that other tests have left in torch.
    own_step: Any = type(optimizer).step
    own_step.__wrapped__(optimizer)
    assert not any(group["capturable"] for group in optimizer.param_groups)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Requested:
    autocast = torch.amp.autocast_mode.autocast
    for owner, name in ((autocast, "__init__"), (autocast, "__enter__"), (torch.amp.GradScaler, "__init__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    requested = Requested()
    _watch_autocast(torch, requested)
    _watch_scaler(torch, requested)
    return requested


OF_CHECKPOINTS = {"__name__": "torch.utils.checkpoint", "autocast": torch.autocast}
OFF: dict[str, tuple[Callable[[], Any], bool]] = {
    "a region": (lambda: torch.autocast("cuda", enabled=False), True),
    "a region by its old name": (lambda: CUDA.amp.autocast(False), True),
    "a scaler": (lambda: CUDA.amp.GradScaler(enabled=False), True),
    "a region that is on": (lambda: torch.autocast("cuda"), False),
    "a region of the CPU": (lambda: torch.autocast("cpu", enabled=False), False),
    "one of torch's own": (eval("lambda: autocast('cuda', enabled=False)", OF_CHECKPOINTS), False),
}


@pytest.mark.filterwarnings("ignore:.*amp:FutureWarning", "ignore:.*CUDA is not available")
@pytest.mark.parametrize("way", OFF)
def test_mixed_precision_that_the_script_switches_off_is_noted(way: str, watched: Requested) -> None:
    make, is_noted = OFF[way]
    make()
    assert watched.switched_off is is_noted
