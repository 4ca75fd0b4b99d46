"""What torch looks at for each export is looked at once, and what one export adds is no other's."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.support.quick_exports import remember_operators

REGISTRATION = "torch.onnx._internal.exporter._registration"


class Registry:
    """Torch's, as far as it is asked."""

    filled = 0

    def __init__(self) -> None:
        self.version = 18
        self.functions: dict[str, list[str]] = {}

    @classmethod
    def from_torchlib(cls, version: int = 18) -> Registry:
        cls.filled += 1
        registry = cls()
        registry.version, registry.functions = version, {"aten::relu": [f"relu of {version}"]}
        return registry


def test_operators_are_looked_at_once_for_each_version(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(REGISTRATION)
    vars(module)["ONNXRegistry"] = type("ONNXRegistry", (Registry,), {"from_torchlib": vars(Registry)["from_torchlib"]})
    monkeypatch.setitem(sys.modules, REGISTRATION, module)
    for _ in range(2):
        remember_operators()
    registry = vars(module)["ONNXRegistry"]
    first = registry().from_torchlib(version=20)
    first.functions["aten::relu"].append("of its own")
    second = registry().from_torchlib(version=20)
    assert (second.version, second.functions) == (20, {"aten::relu": ["relu of 20"]})
    assert registry().from_torchlib().version == 18
    assert registry.filled == 2


def test_a_torch_without_such_a_registry_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(REGISTRATION)
    monkeypatch.setitem(sys.modules, REGISTRATION, module)
    remember_operators()
    assert not hasattr(module, "ONNXRegistry")
