"""Which calls are one micro-batch and how many make a step, told from backward passes and optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import torch

from cotenant.capture.in_script.step_window import (
    Call,
    Step,
    Window,
    find_window,
    freeze_what_only_answers,
    unwrapped,
)
from tests.support.cases import for_each


class FakeOptimizer(str):
    """Named as a string, with weights of its own."""

    __slots__ = ()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self]}]


@dataclass
class FakeCall:
    module: str
    group: int
    inside_step: int = 0
    has_parameters: bool = True
    samples: int = 0
    elements: int = 0
    is_dropped: bool = False
    question: tuple[int, ...] = ()
    weights_version: int = 0
    goes_back: bool = True
    outputs: list[Any] = field(default_factory=list)


def played(events: str, samples: Sequence[int] = (), lengths: Sequence[int] = ()) -> Window:
    """Play a script: letters call networks (`.` = a layer without parameters), `!` goes back, 1 and 2 step.

    `(` and `)` stand around what a step calls as its closure. The calls have so many samples, in order, and these so
    many elements.
    """
    calls: list[FakeCall] = []
    steps: list[Step] = []
    optimizers = {"1": FakeOptimizer("first"), "2": FakeOptimizer("second")}
    passes, inside = 0, 0
    for event in events:
        if event.isalpha() or event == ".":
            of_call = samples[len(calls)] if samples else 0
            elements = of_call * lengths[len(calls)] if lengths else of_call
            calls.append(FakeCall(event, passes, inside, event != ".", of_call, elements))
        passes += event == "!"
        inside = len(steps) + 1 if event == "(" else 0 if event == ")" else inside
        if event in optimizers:
            steps.append(Step(optimizers[event], len(calls), float(len(steps)), 0.0))
    made = [name for digit, name in optimizers.items() if digit in events]
    is_whole = len(steps) > 1
    return find_window(cast("list[Call]", calls), steps, made, is_whole=is_whole)


@for_each(
    ("events", "calls", "accumulation"),
    [
        ("N!1N!1", "N", 1),
        ("N!N!N!1N!N!N!1", "N", 3),
        ("NN!1NN!1", "NN", 1),  # two views of a sample, one loss
        ("ED!ED!1ED!ED!1", "ED", 2),
        ("E.D!1E.D!1", "E.D", 1),
        ("GDD!1D!2GDD!1D!2", "GDDD", 1),
        ("VN!1N!1", "N", 1),  # a look at the validation data comes before
        ("N!1VN!N!1", "VNN", 1),
    ],
)
def test_a_step_is_divided_by_its_backward_passes(events: str, calls: str, accumulation: int) -> None:
    window = played(events)
    assert "".join(cast("str", call.module) for call in window.calls) == calls
    assert window.accumulation == accumulation


def test_further_evaluations_of_a_closure_are_no_accumulation() -> None:
    window = played("(N!N!N!)1(N!N!N!)1")
    assert (len(window.calls), window.accumulation, window.closures) == (1, 1, 3)


def test_micro_batches_before_a_closure_count_with_it() -> None:
    window = played("N!(N!)1N!(N!)1")
    assert (len(window.calls), window.accumulation, window.closures) == (1, 2, 1)


@for_each(
    ("second", "accumulation", "closures"),
    [
        ({"question": (7,), "weights_version": 4}, 1, 2),  # the weights were moved on, as in SAM
        ({"question": (7,), "weights_version": 3}, 2, 1),  # samples that are made once, for all micro-batches
        ({"question": (8,), "weights_version": 4}, 2, 1),
    ],
)
def test_a_second_look_at_the_same_samples_with_other_weights_is_no_accumulation(
    second: dict[str, Any], accumulation: int, closures: int
) -> None:
    one, other = FakeCall("N", 1, question=(7,), weights_version=3), FakeCall("N", 2, **second)
    calls = [FakeCall("N", 0), one, other]
    steps = [Step("first", 1, 0.0, 0.0), Step("first", 3, 1.0, 0.0)]
    window = find_window(cast("list[Call]", calls), steps, ["first"], is_whole=True)
    assert (window.accumulation, window.closures) == (accumulation, closures)


def test_an_optimizer_inside_of_another_one_of_the_same_weights_makes_no_second_micro_batch() -> None:
    """As in SAM's step with a closure: the base steps within the step, which looks at the samples a second time."""
    outer, inner, other = (SimpleNamespace(param_groups=[{"params": [name]}]) for name in ("w", "w", "v"))
    calls = [FakeCall("N", 0)]
    for number in (1, 2):
        calls += [FakeCall("N", 2 * number, question=(number,), weights_version=2 * number)]
        again = FakeCall("N", 2 * number + 1, number, question=(number,), weights_version=2 * number + 1)
        calls += [again]
    for base, found in ((inner, (1, 2)), (other, (2, 1))):
        steps = [Step(each, count, float(count), 0.0) for count in (1, 3, 5) for each in (base, outer)]
        window = find_window(cast("list[Call]", calls), steps, [outer, base], is_whole=True)
        assert (window.accumulation, window.closures) == found


def test_a_validation_with_gradients_that_nothing_asks_for_is_no_part_of_the_batch() -> None:
    network, calls, steps = torch.nn.Linear(3, 2), list[Call](), list[Step]()
    for number in (1, 2, 3):
        for samples in (400, 100):
            batch = torch.randn(samples, 3)
            call = Call(torch, network, ((batch,), {}), group=number - (samples > 100), inside_step=0)
            answer = network(batch)
            call.note_output(torch, (answer,))
            calls.append(call)
            if samples > 100:
                answer.sum().backward()
                steps.append(Step("first", len(calls), float(number), 0.0))
    window = find_window(calls, steps, ["first"], is_whole=True)
    assert ([call.samples for call in window.calls], window.accumulation) == ([400], 1)


@for_each(("is_whole", "learns"), [(True, [False, True, True]), (False, [True, True, True])])
def test_weights_of_a_teacher_whose_answer_is_detached_do_not_learn(is_whole: bool, learns: list[bool]) -> None:
    teacher, student, head = (torch.nn.Linear(3, 3) for _ in range(3))
    optimizer = torch.optim.SGD(student.parameters())  # a head that it was never given has gradients all the same
    calls, steps, batch = list[Call](), list[Step](), torch.randn(8, 3)
    for number in (0, 1, 2):
        outputs = [batch, teacher(batch), student(batch)]
        outputs.append(head(outputs[2]))
        for network, given, answer in zip(
            (teacher, student, head), (batch, batch, outputs[2]), outputs[1:], strict=True
        ):
            calls.append(Call(torch, network, ((given,), {}), group=number, inside_step=0))
            calls[-1].note_output(torch, (answer,))
        (outputs[3] - outputs[1].detach()).square().mean().backward()
        steps.append(Step(optimizer, len(calls), float(number), 0.0))
    freeze_what_only_answers(find_window(calls, steps, [optimizer], is_whole=is_whole))
    assert [each.weight.requires_grad for each in (teacher, student, head)] == learns


def test_an_optimizer_that_never_steps_makes_no_step_of_all_that_the_others_did() -> None:
    calls = [FakeCall("N", number) for number in range(64)]
    steps = [Step("first", number + 1, float(number), 0.0) for number in range(64)]
    window = find_window(cast("list[Call]", calls), steps, ["idle", "first"], is_whole=True)
    assert (window.accumulation, window.step_s) == (1, 1.0)
    assert window.optimizers == ["first", "idle"]


def test_an_optimizer_whose_first_step_is_the_last_one_leaves_no_step() -> None:
    steps = [Step(FakeOptimizer("first"), 1, 0.0, 0.0), Step(FakeOptimizer("second"), 2, 1.0, 0.0)]
    calls = [FakeCall("N", 0), FakeCall("N", 1)]
    assert find_window(cast("list[Call]", calls), steps, ["first", "second"], is_whole=True).calls == []


def test_without_a_whole_step_the_accumulation_is_not_known() -> None:
    window = played("N!N!N!")
    assert (len(window.calls), window.accumulation) == (1, None)


@for_each(
    ("events", "samples", "told", "has_smaller"),
    [
        ("N!1N!1", (32, 16), 32, True),  # two loaders in turn
        ("N!1N!1", (16, 32), 32, True),
        ("N!1N!1", (16, 16), 16, False),
        ("N!N!1N!N!1", (8, 32, 8, 8), 32, True),  # of the first step the micro-batch before its end
        ("VN!1N!1", (64, 16, 16), 16, False),  # validation before training is no step
        ("M!1N!1", (64, 16), 16, False),  # another network
    ],
)
def test_of_batches_of_two_sizes_the_larger_one_is_told(
    events: str, samples: Sequence[int], told: int, has_smaller: bool
) -> None:
    window = played(events, samples)
    assert ([call.samples for call in window.calls], window.has_smaller) == ([told], has_smaller)


@for_each(
    ("samples", "lengths", "told", "has_shorter"),
    [
        ((8, 8), (16, 32), 8 * 32, True),  # sequences that grow
        ((8, 8), (32, 16), 8 * 32, True),  # and of batches padded each to its longest
        ((8, 8), (16, 16), 8 * 16, False),
        ((8, 4), (16, 64), 8 * 16, False),  # the more samples are told: that has a note of its own
    ],
)
def test_of_inputs_of_two_lengths_the_longer_ones_are_told(
    samples: Sequence[int], lengths: Sequence[int], told: int, has_shorter: bool
) -> None:
    window = played("N!1N!1", samples, lengths)
    elements = [cast("FakeCall", call).elements for call in window.calls]
    assert (elements, window.has_shorter) == ([told], has_shorter)


def test_longer_inputs_of_the_smaller_of_two_networks_are_told() -> None:
    """An encoder of images and one of texts: the images are as large as ever."""
    window = played("NM!1NM!1", (8, 8, 8, 8), (900, 20, 900, 10))
    elements = [cast("FakeCall", call).elements for call in window.calls]
    assert (elements, window.has_shorter) == ([8 * 900, 8 * 20], True)


class _FabricModule:
    """As Lightning's Fabric wraps a network: what is set in it is set in the network."""

    def __init__(self, module: object) -> None:
        self.module = module


def test_a_network_is_found_inside_of_what_fabric_wraps_it_into() -> None:
    network = object()
    assert unwrapped(_FabricModule(network)) is network
