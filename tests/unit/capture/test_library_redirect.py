"""Libraries that look for a GPU do in a capture what they would do on one, and what was asked of them is remembered."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from cotenant.capture.in_script.cpu_redirect import Requested
from cotenant.capture.in_script.library_redirect import redirect_library


class Connector:
    """Takes what Lightning's trainer hands on."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class Accelerator:
    """Notes, as accelerate does, whether a network is to be wrapped."""

    native_amp = False

    def __init__(self, mixed_precision: str) -> None:
        self.mixed_precision = mixed_precision

    def prepare_model(self, model: str) -> tuple[str, bool]:
        return model, self.native_amp


def library(name: str, **content: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module


def connected(requested: Requested, **settings: object) -> dict[str, Any]:
    own = type("Connector", (Connector,), {})
    redirect_library(library("lightning.fabric.connector", _Connector=own), requested)
    made: Connector = own(**settings)
    return made.settings


@pytest.mark.parametrize(
    ("devices", "count"), [(1, 1), (2, 2), ("auto", 1), (-1, 1), ([0, 3], 2), ("0,1,2", 3), ("0,", 1), ("2", 2)]
)
def test_a_trainer_for_gpus_trains_on_as_many_processors(devices: object, count: int) -> None:
    requested = Requested()
    settings = connected(requested, accelerator="gpu", devices=devices, precision="32-true")
    assert (settings["accelerator"], settings["devices"]) == ("cpu", count)
    assert (requested.cuda_named, requested.stated) == (True, "")


def test_a_trainer_that_chooses_itself_is_left_alone_and_its_half_precision_remembered() -> None:
    requested = Requested()
    settings = connected(requested, accelerator="auto", devices="auto", precision="16-mixed")
    assert settings == {"accelerator": "auto", "devices": "auto", "precision": "16-mixed"}
    assert (requested.cuda_named, requested.stated) == (False, "fp16")


@pytest.mark.parametrize(("precision", "wrapped"), [("fp16", True), ("no", False)])
def test_networks_are_wrapped_for_fp16_and_nothing_else_takes_it_for_a_gpu(precision: str, wrapped: bool) -> None:
    own = type("Accelerator", (Accelerator,), {})
    redirect_library(library("accelerate.accelerator", Accelerator=own), Requested())
    accelerator: Accelerator = own(precision)
    assert accelerator.prepare_model("net") == ("net", wrapped)
    assert not accelerator.native_amp


def test_settings_that_ask_for_a_gpu_of_today_are_accepted() -> None:
    module = library("transformers.training_args", is_torch_bf16_gpu_available=lambda: False)
    redirect_library(module, Requested())
    assert module.is_torch_bf16_gpu_available()
    assert not hasattr(module, "is_torch_tf32_available")


class Sharded:
    """As the class that torch mixes into networks whose weights lie in parts on several GPUs."""

    def unshard(self) -> None:
        raise AssertionError("there are no parts")

    def set_requires_gradient_sync(self, wanted: bool) -> None:
        raise AssertionError("there are no parts")


class Policy:
    """What weights are computed in; None = as they are."""

    def __init__(self, param_dtype: str | None = None) -> None:
        self.param_dtype = param_dtype


class Network:
    """Takes attributes, as every network does."""


@pytest.mark.parametrize(
    ("settings", "half"),
    [({}, ""), ({"mp_policy": Policy()}, ""), ({"mp_policy": Policy("torch.bfloat16"), "mesh": "mesh"}, "bf16")],
)
def test_weights_that_would_lie_in_parts_stay_whole(settings: dict[str, Any], half: str) -> None:
    def fully_shard(network: object, **settings: object) -> object:
        raise AssertionError("it was sharded")

    name = "torch.distributed.fsdp._fully_shard._fully_shard"
    module = library(name, fully_shard=fully_shard, FSDPModule=Sharded)
    requested, network = Requested(), Network()
    redirect_library(module, requested)
    assert module.fully_shard(network, **settings) is network
    network.set_requires_gradient_sync(False)
    assert network.unshard() is None
    assert (requested.is_sharded, requested.half, requested.shards) == (True, half, 0)


class Mesh:
    """Two copies of four parts."""

    ndim = 2

    def size(self, dimension: int) -> int:
        return (2, 4)[dimension]


def test_of_a_mesh_with_copies_the_parts_are_told() -> None:
    name = "torch.distributed.fsdp._fully_shard._fully_shard"
    module, requested = library(name, fully_shard=lambda: None, FSDPModule=Sharded), Requested()
    redirect_library(module, requested)
    module.fully_shard(Network(), mesh=Mesh())
    assert requested.shards == 4


@pytest.mark.parametrize("name", ["accelerate.accelerator", "lightning.fabric.connector", "transformers.training_args"])
def test_a_release_that_calls_it_otherwise_is_left_as_it_is(name: str) -> None:
    module = library(name)
    before = dict(vars(module))
    redirect_library(module, Requested())
    assert vars(module) == before
