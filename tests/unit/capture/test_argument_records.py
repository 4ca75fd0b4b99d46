"""Networks that take their batch as one object are exported with the tensors in it."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from cotenant_profiler.convert_command import convert
from torch import Tensor, nn

from cotenant.capture.in_script import argument_records, step_window
from cotenant.capture.in_script.argument_records import close_records, open_records
from cotenant.capture.in_script.step_export import EXPORT_FILE, export_network
from cotenant.capture.in_script.step_window import Call, outputs_of, tensors_of
from predictor_service.features.graphs.graph_description import describe_graph

ROWS, WIDTH, CLASSES = 4, 6, 5


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    name: str = "train"


@dataclass(slots=True)
class Slots:
    x: Tensor


class Items(dict[str, Any]):
    """As own code makes attributes of items."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Encoding(UserDict[str, Any]):
    """As libraries hand out texts."""

    def __getattr__(self, name: str) -> Any:
        if name == "data":
            raise AttributeError(name)
        return self.data[name]


class Graphs:
    """As libraries of graphs hold a batch: its tensors lie in a store that knows whose it is."""

    def __init__(self, x: Tensor) -> None:
        self.store = SimpleNamespace(x=x, owner=self)

    @property
    def x(self) -> Any:
        return self.store.x


BATCHES: dict[str, Callable[[Tensor], Any]] = {
    "frozen": Frozen,
    "slots": Slots,
    "items": lambda x: Items(x=x),
    "encoding": lambda x: Encoding(x=x),
    "namespace": lambda x: SimpleNamespace(x=x, epoch=3),
    "graphs": Graphs,
}


class Taking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, batch: Any, scale: float = 1.0) -> Tensor:
        answer: Tensor = self.layer(batch.x) * scale
        return answer


@pytest.mark.parametrize("kind", BATCHES)
def test_the_batch_of_an_object_stays_open_in_the_graph(kind: str, tmp_path: Path) -> None:
    size = export_network(torch, Taking(), (BATCHES[kind](torch.ones(ROWS, WIDTH)),), {"scale": 0.5}, tmp_path)
    graph = describe_graph(convert(tmp_path / EXPORT_FILE))
    assert size == ROWS
    assert [graph.at_batch(batch).forward_macs for batch in (1, 8)] == [WIDTH * CLASSES, 8 * WIDTH * CLASSES]


@pytest.mark.parametrize("constant", [SimpleNamespace(width=3), torch.relu, SimpleNamespace, len])
def test_what_has_no_tensors_is_a_constant_of_the_graph(constant: Any, tmp_path: Path) -> None:
    class Given(Taking):
        def forward(self, batch: Any, given: Any) -> Tensor:  # type: ignore[override]
            answer: Tensor = self.layer(given(batch) if given is torch.relu else batch)
            return answer

    assert export_network(torch, Given(), (torch.ones(ROWS, WIDTH), constant), {}, tmp_path) == ROWS
    assert describe_graph(convert(tmp_path / EXPORT_FILE)).at_batch(8).forward_macs == 8 * WIDTH * CLASSES


def test_an_object_is_put_together_with_other_tensors_and_stays_what_it_was() -> None:
    own = Graphs(torch.ones(2))
    opened, is_any = open_records(torch, (own, "word"))
    assert open_records(torch, (torch.ones(2), "word", None, 3, torch.float32))[1] is False
    doubled = torch.utils._pytree.tree_map(lambda leaf: leaf * 2 if isinstance(leaf, Tensor) else leaf, opened)
    made, word = close_records(torch, doubled)
    assert (is_any, word, type(made), own.x.tolist(), made.x.tolist()) == (True, "word", Graphs, [1, 1], [2, 2])


def test_objects_without_tensors_networks_and_modules_are_left_alone() -> None:
    module = ModuleType("own")
    vars(module)["x"] = torch.ones(2)
    values = (SimpleNamespace(width=3), nn.Linear(2, 2), module, [1, "word"], Tensor)
    assert open_records(torch, values)[0] == values


def test_a_dictionary_that_holds_itself_is_left_alone() -> None:
    around: dict[str, Any] = {"x": torch.ones(2)}
    around["itself"] = around
    own = SimpleNamespace(around=around)
    assert open_records(torch, (own, 3)) == ((own, 3), True)
    assert outputs_of(torch, own) == []


@pytest.mark.parametrize("walk", [open_records, outputs_of])
def test_no_more_of_objects_that_refer_to_each_other_is_looked_at_than_a_bound(
    monkeypatch: pytest.MonkeyPatch, walk: Callable[..., Any]
) -> None:
    looks: list[Any] = []
    real = argument_records.fields_of

    def fields_of(library: Any, record: Any) -> Any:
        looks.append(record)
        return real(library, record)

    monkeypatch.setattr(argument_records, "LEAVES_MAX", 500)
    for module in (argument_records, step_window):
        monkeypatch.setattr(module, "fields_of", fields_of)
    wide: Any = SimpleNamespace(x=torch.ones(2))
    for _ in range(3):
        wide = SimpleNamespace(parts=[wide] * 30)
    walk(torch, (wide,))
    assert 3 < len(looks) <= 500


def test_a_call_shows_the_samples_of_its_object() -> None:
    call = Call(torch, Taking(), ((Graphs(torch.ones(7, WIDTH)),), {}), group=0, inside_step=0)
    assert call.samples == 7
    assert [tuple(each.shape) for each in tensors_of(torch, (call.args, call.kwargs))] == [(7, WIDTH)]
