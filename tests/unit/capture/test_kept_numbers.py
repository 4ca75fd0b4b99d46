"""A network that reads numbers which it keeps, as MoCo reads the pointer of its queue, is exported as it last was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cotenant_profiler.convert_command import convert
from torch import Tensor, nn

from cotenant.capture.in_script.kept_numbers import KeptNumbers
from cotenant.capture.in_script.read_numbers import ReadNumbers
from cotenant.capture.in_script.step_export import EXPORT_FILE, _export
from cotenant.capture.in_script.step_window import Call
from predictor_service.features.graphs.graph_description import describe_graph

_WIDTH, _QUEUE, _BATCH = 4, 32, 8
_READS: dict[str, Callable[[Tensor], Any]] = {
    "int": int,
    "item": lambda kept: kept.item(),
    "float": lambda kept: int(float(kept)),
    "element": lambda kept: int(kept[0]),
    "item of an element": lambda kept: kept[-1].item(),
}


class Contrast(nn.Module):
    """Two encoders, of which the second follows the first, and a queue of what it said."""

    def __init__(self, read: Callable[[Tensor], Any], *, assigns: bool) -> None:
        super().__init__()
        self.read, self.assigns = read, assigns
        self.query, self.key = nn.Linear(12, _WIDTH), nn.Linear(12, _WIDTH)
        self.key.requires_grad_(False)
        self.register_buffer("queue", torch.randn(_WIDTH, _QUEUE))
        self.register_buffer("queue_ptr", torch.full((1,), 16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, its in zip(self.query.parameters(), self.key.parameters(), strict=True):
                if self.assigns:
                    its.data = 0.9 * its.data + 0.1 * mine.data
                else:
                    its.data.mul_(0.9).add_(mine.data, alpha=0.1)
            said = self.key(x[torch.randperm(x.shape[0])])
        queue = self.get_buffer("queue")
        asked = self.query(x)
        answer: Tensor = torch.einsum("nc,ck->nk", asked, queue.clone()) + (asked * said).sum(1, keepdim=True)
        place = self.read(self.get_buffer("queue_ptr"))
        queue[:, place : place + x.shape[0]] = said.T.detach()
        self.get_buffer("queue_ptr")[0] = (place + x.shape[0]) % _QUEUE
        return answer


@pytest.mark.parametrize("assigns", [True, False])
@pytest.mark.parametrize("read", _READS)
def test_a_queue_is_exported_at_its_pointer_and_both_encoders_are_counted(
    read: str, assigns: bool, tmp_path: Path
) -> None:
    network = Contrast(_READS[read], assigns=assigns)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    calls = [Call(torch, network, ((torch.ones(_BATCH, 12),), {}), group=0, inside_step=0)]
    with KeptNumbers(torch, [network]) as kept:
        exported, _, _, _ = _export(torch, calls, _BATCH, 0)
    assert kept.names == ["queue_ptr"]
    torch.export.save(exported, str(tmp_path / EXPORT_FILE))
    macs = describe_graph(convert(tmp_path / EXPORT_FILE)).at_batch(_BATCH).forward_macs
    assert macs == _BATCH * (2 * 12 * _WIDTH + _WIDTH * _QUEUE)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


class Rows(nn.Module):
    """Sums the columns that compressed pointers name, and reads one that a forward pass has made."""

    def __init__(self, *, reads_its_input: bool) -> None:
        super().__init__()
        self.reads_its_input = reads_its_input
        self.linear = nn.Linear(12, _WIDTH)
        self.register_buffer("pointers", torch.tensor([[0, 2, 5], [5, 7, 12]]))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.get_buffer("pointers")
        first, last = int(rows[0, 1]), int(rows[1][1]) + (int(x[0, 0]) if self.reads_its_input else 0)
        answer: Tensor = self.linear(x)[:, : last - first - 3] * x[:, first:last].sum()
        return answer


def test_single_elements_of_what_is_kept_are_read_as_they_were() -> None:
    network = Rows(reads_its_input=False)
    calls = [Call(torch, network, ((torch.ones(_BATCH, 12),), {}), group=0, inside_step=0)]
    with KeptNumbers(torch, [network]) as kept:
        exported, _, _, _ = _export(torch, calls, _BATCH, 0)
    assert kept.names == ["pointers"]
    slices = [node.args[2:] for node in exported.graph.nodes if "slice" in str(node.target)]
    assert (2, 7) in slices
    assert (0, 2) in slices


def test_an_element_of_the_input_is_no_number_that_is_kept_but_one_that_is_read_off_it() -> None:
    network = Rows(reads_its_input=True)
    calls = [Call(torch, network, ((torch.ones(_BATCH, 12),), {}), group=0, inside_step=0)]
    read = ReadNumbers(torch)
    with KeptNumbers(torch, [network]) as kept:
        _, is_fixed, _, _ = _export(torch, calls, _BATCH, 0, read)
    assert (kept.names, is_fixed) == (["pointers"], True)
    assert [place.partition(":")[0] for place in read.places] == ["test_kept_numbers.py"]


class Packed(Tensor):
    """As libraries that quantize make them: it shows no number of its own."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
        raise RuntimeError(f"{function} of packed numbers")


@pytest.mark.parametrize(
    "buffer",
    [
        Tensor._make_wrapper_subclass(Packed, (3,)),
        torch.empty(3, dtype=torch.bits8),
        torch.eye(3).to_sparse(),
        torch.ones(3, device="meta"),
    ],
    ids=["of an own class", "of bits", "sparse", "without storage"],
)
def test_a_buffer_that_shows_no_numbers_is_left_to_torch(buffer: Tensor) -> None:
    network = nn.Module()
    network.register_buffer("packed", buffer)
    with KeptNumbers(torch, [network]) as kept:
        assert not kept.names


def test_torch_is_as_before_once_an_export_has_ended() -> None:
    names = ("__int__", "__index__", "__bool__", "__float__", "item", "data", "__getitem__")
    before = {name: vars(torch.Tensor).get(name) for name in names}
    own = torch.randperm
    tensor = torch.zeros(2)
    with KeptNumbers(torch, [nn.BatchNorm1d(3)]) as kept:
        tensor.data = torch.ones(3)
        assert int(torch.tensor(7)) == 7
    assert {name: vars(torch.Tensor).get(name) for name in names} == before
    assert (torch.randperm, tensor.tolist(), kept.names) == (own, [1.0, 1.0, 1.0], [])
