"""What the recorder does to torch is undone wherever the script stands when enough is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cotenant.capture.in_script import recorder as recorder_module
from cotenant.capture.in_script import repeated_answers
from cotenant.capture.in_script.cpu_redirect import Requested
from cotenant.capture.in_script.recorder import Recorder
from cotenant.capture.in_script.step_export import export_step
from cotenant.capture.in_script.step_window import Call, Step, Window, awaited, find_window


class Redirection(torch.overrides.TorchFunctionMode):
    """As that of a capture, which changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_script_whose_optimizers_step_inside_of_the_backward_pass_is_left_there(tmp_path: Path) -> None:
    recorder = Recorder(torch, tmp_path)
    recorder.requested = Requested()
    recorder.requested.mode = Redirection()
    weight = torch.ones(2, requires_grad=True)
    left: list[bool] = []

    def step(_: torch.Tensor) -> None:
        recorder.uninstall()
        left.append(True)

    weight.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
    with recorder.requested.mode:
        weight.sum().backward()  # type: ignore[no-untyped-call]
    assert left == [True]


def test_pieces_of_a_sequence_that_are_cut_out_for_each_call_are_one_network(tmp_path: Path) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    recorder = Recorder(torch, tmp_path)
    recorder.install()
    try:
        for _ in range(3):
            layers[1:](torch.ones(2, 4))
        layers[:1](torch.ones(2, 4))
    finally:
        recorder.uninstall()
    modules = [call.module for call in recorder.calls]
    assert modules[0] is modules[1] is modules[2]
    assert modules[3] is not modules[0]


def test_the_batches_that_loaders_hand_out_between_two_steps_are_counted(tmp_path: Path) -> None:
    network = torch.nn.Linear(4, 2)
    recorder = Recorder(torch, tmp_path)
    recorder.install()
    loader: Any = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2)  # type: ignore[arg-type]
    try:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        waiting = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
        for number, batch in enumerate(loader):
            network(batch).sum().backward()
            if number % 3 == 2:
                recorder._after_step(optimizer, (), {})  # a step itself would call the recorders of other tests too
    finally:
        recorder.uninstall()
    window = find_window(recorder.calls, recorder.steps, [optimizer, waiting], is_whole=True)
    assert (window.accumulation, window.loaded_batches) == (3, 3)


def test_calls_without_gradients_of_what_learns_are_counted_and_those_of_what_does_not_are_none(tmp_path: Path) -> None:
    network, frozen = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2).requires_grad_(False)
    recorder = Recorder(torch, tmp_path)
    recorder.install()
    try:
        with torch.no_grad():
            for each in (network, network, frozen):
                each(torch.ones(2, 4))
        network(torch.ones(2, 4))
    finally:
        recorder.uninstall()
    assert recorder.asked == {id(network): 2}


def test_an_ensemble_whose_weights_learn_inside_of_a_transform_alone_is_refused_for_that(tmp_path: Path) -> None:
    networks = [torch.nn.Linear(4, 2) for _ in range(3)]
    weights, _ = torch.func.stack_module_state(networks)
    frame = torch.nn.Linear(4, 2).to("meta")
    recorder = Recorder(torch, tmp_path)
    recorder.install()
    try:
        answer = torch.func.vmap(lambda own: torch.func.functional_call(frame, own, (torch.ones(5, 4),)))(weights)
        answer.sum().backward()
    finally:
        recorder.uninstall()
    recorder.requested, recorder.is_writing = Requested(), True  # its hooks stay in torch, and hear of other tests
    result = export_step(recorder, Window([], 1, 1, [torch.optim.SGD(weights.values(), lr=0.1)]))
    assert (result["status"], result["reason"]) == ("failed", "transformed")


class Wrapper(torch.optim.Optimizer):
    """Holds the parameters of another optimizer, which alone steps, as SAM and Lookahead do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner


def test_an_optimizer_around_another_one_is_not_waited_for(tmp_path: Path) -> None:
    inner = torch.optim.SGD(torch.nn.Linear(4, 2).parameters(), lr=0.1)
    other = torch.optim.SGD(torch.nn.Linear(4, 2).parameters(), lr=0.1)
    wrapper, steps = Wrapper(inner), [Step(inner, 0, 0.0, 0.0)]
    assert awaited([inner, wrapper], steps) == [inner]
    assert awaited([inner, wrapper, other], steps) == [inner, other]
    assert awaited([inner, wrapper], []) == [inner, wrapper]


def test_weights_that_are_laid_off_in_the_turn_of_the_other_optimizer_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, judge = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    both = {maker: torch.optim.SGD(maker.parameters(), 0.1), judge: torch.optim.SGD(judge.parameters(), 0.1)}
    told: list[Window] = []

    def export_step(which: Recorder, window: Window) -> dict[str, Any]:
        assert all(each.requires_grad for network in both for each in network.parameters())
        told.extend([window] if which is recorder else [])  # hooks of other tests' recorders stay in torch
        return {}

    monkeypatch.setattr(recorder_module, "export_step", export_step)
    monkeypatch.setattr(recorder_module, "write_result", lambda folder, result: None)
    recorder = Recorder(torch, tmp_path)
    recorder.install()
    for _ in range(2):
        for network, optimizer in both.items():  # as Lightning's `toggle_optimizer` does
            for other in both:
                other.requires_grad_(other is network)
            loss = judge(maker(torch.ones(3, 4))).sum()
            (loss + judge(torch.ones(3, 4)).sum() if network is judge else loss).backward()
            optimizer.step()
    (window,) = told
    assert [call.module for call in window.calls] == [maker, judge, maker, judge, judge]


def test_a_script_whose_time_ends_in_a_backward_pass_is_told_of_before_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of Adam over many weights took the rest of the time on 16 cores, and nothing was told of the network."""
    network = torch.nn.Linear(4, 2)
    before, told = network.weight.detach().clone(), list[Window]()

    def export_step(which: Recorder, window: Window) -> dict[str, Any]:
        assert torch.equal(network.weight, before)
        told.extend([window] if which is recorder else [])
        return {}

    monkeypatch.setattr(recorder_module, "export_step", export_step)
    monkeypatch.setattr(recorder_module, "write_result", lambda folder, result: None)
    recorder = Recorder(torch, tmp_path)
    recorder.install()
    optimizer = torch.optim.AdamW(network.parameters(), 0.1)
    network(torch.ones(3, 4)).sum().backward()
    recorder.note_limit()
    optimizer.step()
    (window,) = told
    assert ([call.module for call in window.calls], window.accumulation) == ([network], None)


@pytest.mark.parametrize(
    ("calls", "learns", "reason"), [(0, True, "no_forward"), (1, True, "step_limit"), (1, False, "asked_limit")]
)
def test_a_script_that_never_comes_to_a_step_is_ended_with_how_far_it_came(
    calls: int, learns: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[dict[str, Any]] = []
    monkeypatch.setattr(recorder_module, "write_result", lambda folder, result: results.append(result))
    recorder = Recorder(torch, tmp_path)
    recorder.install()
    try:
        for _ in range(calls):
            with torch.set_grad_enabled(learns):
                torch.nn.Linear(4, 2)(torch.ones(3, 4))
        for _ in range(recorder_module.WARNINGS_MAX + 1):
            recorder.note_limit()
    finally:
        recorder.uninstall()
    assert results[-1]["reason"] == reason


def test_what_torch_func_differentiates_is_not_taken_for_a_second_derivative(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 1)
    recorder = Recorder(torch, tmp_path)
    recorder.install()
    try:
        torch.func.grad(lambda x: layer(x).sum())(torch.ones(4))
        transformed = recorder.differentiates_twice
        x = torch.ones(4, requires_grad=True)
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    finally:
        recorder.uninstall()
    assert (transformed, recorder.differentiates_twice) == (False, True)
    assert [call.is_transformed for call in recorder.calls] == [True, False]


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided), "nested"),
        (lambda: torch.eye(3), ""),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_inputs_that_no_export_takes_are_named(make: Callable[[], torch.Tensor], refusal: str) -> None:
    call = Call(torch, torch.nn.Linear(3, 3), ((torch.ones(3, 3), make()), {}), group=0, inside_step=0)
    assert Window([call], 1, 1, []).refusal == refusal


@pytest.mark.parametrize(("patience_s", "computed"), [(0.0, 1), (1e9, 4)])
def test_a_long_validation_before_the_first_step_is_computed_once(
    patience_s: float, computed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_answers, "PATIENCE_S", patience_s)
    seen: list[int] = []
    network = torch.nn.Linear(4, 2)
    network.register_forward_hook(lambda *_: seen.append(1))
    recorder = Recorder(torch, tmp_path)
    recorder.install()
    try:
        with torch.no_grad():
            for _ in range(4):
                network(torch.ones(3, 4))
        assert len(seen) == computed
        network(torch.ones(3, 4)).sum().backward()
    finally:
        recorder.uninstall()
    assert len(seen) == computed + 1
    assert len(recorder.calls) == 1
