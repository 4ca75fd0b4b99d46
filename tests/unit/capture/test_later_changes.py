"""What a script will do later is told by the names in it; what it does already is seen in its network."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from torch import nn
from torch.ao.quantization import FakeQuantize, QuantStub

from cotenant.capture.in_script import later_changes
from cotenant.capture.in_script.later_changes import are_quantized, named_changes


def named_in(monkeypatch: pytest.MonkeyPatch, source: str, *words: str) -> dict[str, str]:
    """Let a script of this text be the one that runs."""
    script = ModuleType("__main__")
    exec(compile(source, "train.py", "exec"), vars(script))
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    return named_changes()


@pytest.mark.parametrize(
    ("source", "words", "name"),
    [
        ("class CurriculumSampler: pass", (), "CurriculumSampler"),
        ("def main():\n    seq_len_schedule = [128, 512]", (), "seq_len_schedule"),
        (
            "class Data:\n    def grow_seq_len(self): pass\n    def step(self):\n        self.grow_seq_len()",
            (),
            "grow_seq_len",
        ),
        ("from argparse import Namespace\nargs = Namespace(curriculum_steps=9)", (), "curriculum_steps"),
        ("", ("--seqlen-warmup", "100"), "seqlen_warmup"),
        ("seq_len = 128\ndef warmup(): pass\nlearning_rate_schedule = 1", ("--warmup-steps", "10"), ""),
        ("import json, logging", (), ""),
        # What a library has for those who want it is no sign that this script does.
        ("Data = type('Data', (), {'__module__': 'library', 'grow': lambda self: self.curriculum})", (), ""),
    ],
)
def test_growing_lengths_are_told_by_their_name(
    monkeypatch: pytest.MonkeyPatch, source: str, words: tuple[str, ...], name: str
) -> None:
    assert named_in(monkeypatch, source, *words)["growing_lengths"] == name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from torch.ao.quantization import prepare_qat", "prepare_qat"),
        ("import torch.ao.quantization as tq", "tq"),
        ("from torch.ao.quantization import quantize_dynamic", ""),
        ("import torch\ndef begin(network):\n    torch.ao.quantization.prepare_qat(network)", "prepare_qat"),
        ("import torch\nfrom torch import nn\nnetwork = nn.Linear(2, 2)", ""),
    ],
)
def test_quantization_that_comes_later_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch, source: str, name: str
) -> None:
    assert named_in(monkeypatch, source)["later_quantizer"] == name


def test_a_network_with_fake_quantizers_is_known_and_places_for_them_are_none() -> None:
    assert are_quantized([nn.Sequential(nn.Linear(2, 2), FakeQuantize())])
    assert not are_quantized([nn.Sequential(QuantStub(), nn.Linear(2, 2))])


def test_an_object_that_answers_to_nothing_costs_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "class Lazy:\n    def __getattribute__(self, name): raise RuntimeError(name)\nlazy = Lazy()"
    assert named_in(monkeypatch, source) == {"growing_lengths": "", "later_quantizer": ""}


def test_no_more_names_than_the_bound_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_changes, "_NAMES_MAX", 50)
    source = "\n".join([*(f"value_{number} = 0" for number in range(50)), "curriculum = 0"])
    assert named_in(monkeypatch, source)["growing_lengths"] == ""
