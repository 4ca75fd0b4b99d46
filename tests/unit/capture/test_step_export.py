"""Networks are exported as they train, whatever torch and the script's own precision do with them elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from cotenant_profiler.convert_command import _cause, convert, convert_command
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from cotenant.capture.in_script.batch_constants import BatchConstants
from cotenant.capture.in_script.step_export import EXPORT_FILE, _batch_sizes, _export, export_network
from cotenant.capture.in_script.step_window import Call
from cotenant.capture.reasons import COMPLEX_NUMBERS
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from tests.support.cases import sampled

_WORDS, _WIDTH = 50, 16


class LanguageModel(nn.Module):
    """As the tutorials of torch write it: the mask is made in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        layer = nn.TransformerEncoderLayer(_WIDTH, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        answer: Tensor = self.head(self.layers(self.words(words), mask=mask))
        return answer


def macs(network: nn.Module, sample: Tensor, folder: Path) -> float:
    export_network(torch, network, (sample,), {}, folder)
    return describe_graph(convert(folder / EXPORT_FILE)).at_batch(2).forward_macs


PROJECTED = 4 * _WIDTH * _WIDTH + 2 * 32 * _WIDTH + _WIDTH * _WORDS
"""Multiply-adds of one word in the layer and in the head, but for those of attention itself."""


@pytest.mark.parametrize("learns", sampled([False, True], 1), ids=["frozen", "learning"])
def test_a_transformer_that_makes_its_mask_itself_is_exported_one_operator_at_a_time(
    learns: bool, tmp_path: Path
) -> None:
    network, words = LanguageModel(), torch.ones(2, 12, dtype=torch.long)
    for part in (network.words, network.layers):
        part.requires_grad_(learns)
    assert macs(network, words, tmp_path) == 2 * 12 * (PROJECTED + 2 * 12 * _WIDTH)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_wide_network_takes_narrow_inputs_as_under_autocast(tmp_path: Path) -> None:
    assert macs(nn.Linear(6, 5), torch.ones(2, 6, dtype=torch.float16), tmp_path) == 2 * 6 * 5


class Flat(nn.Module):
    """A perceptron that flattens its samples in one of several ways."""

    def __init__(self, rows: Callable[[Tensor], int]) -> None:
        super().__init__()
        self.rows, self.one, self.two = rows, nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.two(torch.relu(self.one(x.view(self.rows(x), -1))))
        return answer


def _length(x: Tensor) -> int:
    return len(x)


def _number(x: Tensor) -> int:
    return int(x.shape[0])


def _exported(network: nn.Module, folder: Path) -> tuple[bool, str, GraphDescription]:
    calls = [Call(torch, network, ((torch.ones(8, 3, 4),), {}), group=0, inside_step=0)]
    with BatchConstants(torch) as constants:
        exported, is_fixed, _, _ = _export(torch, calls, 8, 0)
    torch.export.save(exported, str(folder / EXPORT_FILE))
    return is_fixed, constants.place, describe_graph(convert(folder / EXPORT_FILE))


@pytest.mark.parametrize("rows", [_length, _number])
def test_a_python_number_of_the_batch_is_found_by_its_line_and_other_batches_are_predicted_as_of_an_open_graph(
    rows: Callable[[Tensor], int], tmp_path: Path
) -> None:
    is_fixed, place, fixed = _exported(Flat(rows), tmp_path)
    line = rows.__code__.co_firstlineno + 1
    assert is_fixed
    assert place == f"{os.path.relpath(__file__)}:{line}"
    assert [warning.code for warning in fixed.warnings] == ["FIXED_BATCH"]
    is_fixed, place, open_graph = _exported(Flat(lambda x: x.shape[0]), tmp_path)
    assert (is_fixed, place) == (False, "")
    for batch in (1, 2, 8, 32):
        one, other = fixed.at_batch(batch), open_graph.at_batch(batch)
        assert one.forward_macs == other.forward_macs
        assert one.activation_bytes_saved == other.activation_bytes_saved
        assert one.input_bytes == other.input_bytes


def test_sizes_are_as_before_once_an_export_has_ended() -> None:
    before = {name: vars(torch.SymInt)[name] for name in ("__int__", "__index__")}
    with BatchConstants(torch):
        assert vars(torch.SymInt)["__int__"] is not before["__int__"]
    assert {name: vars(torch.SymInt)[name] for name in before} == before


class LearnedBias(nn.Module):
    """Attention with a mask that learns, as T5's distances: which kernel takes it changes while it is converted."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.distances = nn.Embedding(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        size, length = x.shape[:2]
        heads = self.inner(x).view(size, length, 2, -1).transpose(1, 2)
        places = torch.arange(length)
        bias = self.distances((places[:, None] - places[None]).abs()).permute(2, 0, 1)[None]
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)
        answer: Tensor = self.outer(mixed.transpose(1, 2).contiguous().reshape(size, length, -1).contiguous())
        return answer


def test_attention_with_a_bias_that_learns_is_converted(tmp_path: Path) -> None:
    found = macs(LearnedBias(), torch.ones(2, 12, _WIDTH), tmp_path)
    assert found == 2 * 12 * (2 * _WIDTH * _WIDTH + 2 * 12 * _WIDTH)


class Squared(torch.autograd.Function):
    """A function with a gradient of its own, as scripts write activations and straight-through estimators."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        answer: Tensor = 2 * x * gradients[0]
        return answer


class Checkpointed(nn.Module):
    """One block of own functions that is computed again in the backward pass, and a head behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        def run(x: Tensor) -> Tensor:
            squared: Tensor = Squared.apply(self.block(x))  # type: ignore[no-untyped-call]
            return squared

        answer: Tensor = self.head(checkpoint(run, x, use_reentrant=False))
        return answer


def test_functions_with_gradients_of_their_own_are_exported_from_checkpointed_blocks(tmp_path: Path) -> None:
    assert macs(Checkpointed(), torch.ones(2, _WIDTH), tmp_path) == 2 * (_WIDTH * _WIDTH + 3 * _WIDTH)


def test_a_network_that_was_exported_answers_as_before(tmp_path: Path) -> None:
    network, sample = nn.Linear(6, 5), torch.ones(2, 6)
    export_network(torch, network, (sample,), {}, tmp_path)
    assert network(sample).shape == (2, 5)
    vars(network)["forward"] = lambda rows: 2 * rows  # as libraries do
    export_network(torch, network, (sample,), {}, tmp_path)
    assert torch.equal(network(sample), 2 * sample)


class Rephraser(nn.Module):
    """As T5: what it reads its labels for is more than a loss; further arguments it leaves to others."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WORDS)

    def forward(self, words: Tensor, labels: Tensor | None = None, **others: Tensor) -> Tensor:
        if labels is None:
            raise ValueError("nothing to translate to")
        answer: Tensor = self.head(self.words(words) + self.words(labels))
        return answer


class Adapted(nn.Module):
    """As networks around others are written that take whatever these take."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Rephraser()

    def forward(self, *args: Tensor, **others: Tensor) -> Tensor:
        answer: Tensor = self.inner(*args, **others)
        return answer


@pytest.mark.parametrize("network", [Rephraser(), Adapted()], ids=["some", "all"])
def test_arguments_of_any_name_are_exported_for_any_batch(network: nn.Module) -> None:
    words = torch.ones(4, 12, dtype=torch.long)
    named = {"words": words, "labels": words + 1, "num_items_in_batch": torch.tensor(48)}
    call = Call(torch, network, ((), named), group=0, inside_step=0)
    assert not _export(torch, [call], 4, 0)[1]


def test_the_compiler_takes_no_part_in_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before torch 2.8 it does unless told not to, and finds nothing: it is switched off in a capture.
    export = torch.export.export

    def compile_first(*args: Any, strict: bool = True, **named: Any) -> Any:
        assert not strict, "no tensor operations were found"
        return export(*args, strict=strict, **named)

    monkeypatch.setattr(torch.export, "export", compile_first)
    call = Call(torch, nn.Linear(4, 2), ((torch.rand(3, 4),), {}), group=0, inside_step=0)
    assert not _export(torch, [call], 3, 0)[1]


class Detector(nn.Module):
    """As those of torchvision: images and their targets come in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes = nn.Conv2d(3, _WIDTH, 4, stride=4), nn.Linear(_WIDTH, 5)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
        found = self.classes(self.body(torch.stack(images)).flatten(2).transpose(1, 2))
        labels = torch.stack([target["labels"] for target in targets])
        return nn.functional.cross_entropy(found.flatten(0, 1), labels.flatten())


def test_images_in_a_list_are_as_many_samples_and_the_places_in_them_are_none(tmp_path: Path) -> None:
    images = [torch.rand(3, 32, 32) for _ in range(4)]
    targets = [{"labels": torch.ones(64, dtype=torch.long)} for _ in images]
    call = Call(torch, Detector(), ((images, targets), {}), group=0, inside_step=0)
    size, dimension = _batch_sizes(torch, [call], []) or (0, 0)
    assert size == 4
    assert _export(torch, [call], size, dimension)[1], "no tensor has the batch, so that it holds for this one only"


class Speller(nn.Module):
    """As language models are trained that are handed their states from one piece of a text to the next."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.letters = nn.Embedding(_WORDS, _WIDTH)
        self.cells = nn.LSTM(_WIDTH, 8, 2, batch_first=batch_first)

    def forward(self, letters: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Any]:
        answer: tuple[Tensor, Any] = self.cells(self.letters(letters), state)
        return answer


@pytest.mark.filterwarnings("ignore:The tensor attributes self.cells._flat_weights")  # of every recurrent network
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_states_of_a_recurrent_network_are_no_batch_of_as_many_as_it_has_layers(
    batch_first: bool, tmp_path: Path
) -> None:
    letters = torch.ones((5, 3) if batch_first else (3, 5), dtype=torch.long)
    state = (torch.zeros(2, 5, 8), torch.zeros(2, 5, 8))
    network = Speller(batch_first=batch_first)
    assert export_network(torch, network, (letters, state), {}, tmp_path) == 5
    one, two = (describe_graph(convert(tmp_path / EXPORT_FILE)).at_batch(size).forward_macs for size in (5, 10))
    assert two == 2 * one > 0


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")  # of every recurrent network
def test_series_in_the_shape_of_a_state_that_come_alone_are_samples(tmp_path: Path) -> None:
    network, series = nn.LSTM(8, 8, 2, batch_first=True), torch.ones(2, 7, 8)
    assert export_network(torch, network, (series,), {}, tmp_path) == 2


class Translator(nn.Module):
    """As tutorials write it: time is the first dimension, and the two languages say it in sentences of two lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.reader, self.writer = nn.GRU(_WIDTH, _WIDTH), nn.GRU(_WIDTH, _WIDTH)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.reader(self.words(source))
        answer: Tensor = self.writer(self.words(target), state)[0]
        return answer


@pytest.mark.filterwarnings("ignore:The tensor attributes self.*_flat_weights")  # of every recurrent network
def test_sentences_of_two_lengths_have_their_batch_in_common(tmp_path: Path) -> None:
    network, sentences = Translator(), (torch.ones(9, 5, dtype=torch.long), torch.ones(7, 5, dtype=torch.long))
    assert export_network(torch, network, sentences, {}, tmp_path) == 5
    one, two = (describe_graph(convert(tmp_path / EXPORT_FILE)).at_batch(size).forward_macs for size in (5, 10))
    assert two == 2 * one > 0


class Filter(nn.Module):
    """Writes into complex numbers, for which ONNX has nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, series: Tensor) -> Tensor:
        waves = torch.fft.rfft(series * self.weight)
        low = torch.zeros_like(waves)
        low[..., :3] = waves[..., :3]
        answer: Tensor = torch.fft.irfft(low)
        return answer


def test_a_refused_conversion_is_told_by_what_it_was_raised_from() -> None:
    error = RuntimeError("a page of advice")
    error.__cause__ = ValueError("no such operator\nmore of it")
    assert _cause(error) == "no such operator"


def test_a_network_that_computes_with_complex_numbers_is_refused_by_that(tmp_path: Path) -> None:
    export_network(torch, Filter(), (torch.ones(2, 8),), {}, tmp_path)
    outcome = CliRunner().invoke(convert_command, [str(tmp_path / EXPORT_FILE), "--out", str(tmp_path / "graph.onnx")])
    assert str(outcome.exception).startswith(f"cannot convert {EXPORT_FILE}: {COMPLEX_NUMBERS}")


class Actor(nn.Module):
    """As agents are written: what it answers is a distribution of actions, and their value."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actions, self.value = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(8, 1)

    def forward(self, seen: Tensor) -> tuple[Categorical, Tensor]:
        known = self.body(seen).tanh()
        return Categorical(logits=self.actions(known)), self.value(known)


def test_a_network_that_answers_with_a_distribution_is_exported_with_what_makes_it(tmp_path: Path) -> None:
    assert macs(Actor(), torch.ones(2, 6), tmp_path) == 2 * (6 * 8 + 8 * 5 + 8 * 1)
    with pytest.raises(ValueError, match="constraint"):
        Categorical(logits=torch.tensor([torch.nan]))  # as before


class Tagger(nn.Module):
    """As the tutorials of recurrent networks write it, in the layout of its cells or in the other one."""

    def __init__(self, *, cells_first: bool, packs_first: bool, is_sorted: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH, padding_idx=0)
        self.cells = nn.GRU(_WIDTH, 8, batch_first=cells_first)
        self.head = nn.Linear(8, 3)
        self.packs_first, self.is_sorted = packs_first, is_sorted

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        seen = self.words(words)
        packed = pack_padded_sequence(
            seen if self.packs_first else seen.transpose(0, 1), lengths, self.packs_first, self.is_sorted
        )
        states, _ = pad_packed_sequence(self.cells(packed)[0], batch_first=True, total_length=words.shape[1])
        answer: Tensor = self.head(states)
        return answer


@pytest.mark.filterwarnings("ignore:The tensor attributes self.cells._flat_weights")  # of every recurrent network
@pytest.mark.parametrize("cells_first", sampled([True, False], 1))
def test_packed_sequences_are_exported_as_padded_ones(cells_first: bool, tmp_path: Path) -> None:
    network = Tagger(cells_first=cells_first, packs_first=True, is_sorted=cells_first)
    words, lengths = torch.ones(4, 5, dtype=torch.long), torch.tensor([5, 4, 2, 1])
    before: Tensor = network(words, lengths)
    export_network(torch, network, (words, lengths), {}, tmp_path)
    described = describe_graph(convert(tmp_path / EXPORT_FILE))
    assert described.at_batch(4).forward_macs == 4 * 5 * (3 * 8 * (_WIDTH + 8) + 8 * 3)
    assert described.at_batch(8).forward_macs == 2 * described.at_batch(4).forward_macs
    packed = pack_padded_sequence(torch.ones(4, 5, 1), lengths, batch_first=True)
    assert packed.data.shape == (5 + 4 + 2 + 1, 1)
    assert torch.equal(network.eval()(words, lengths), before)
