"""Libraries that look for a GPU do in a capture what they would do on one, and what was asked of them is remembered."""

from __future__ import annotations

import functools
import json
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy, fully_sharded_data_parallel
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from cotenant.capture.in_script.cpu_redirect import Requested
from cotenant.capture.in_script.library_redirect import redirect_library
from cotenant.capture.in_script.sharded_units import gathered_ratio
from cotenant.capture.in_script.step_window import unwrapped


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


def test_attention_with_a_mask_of_code_has_gradients_on_a_cpu() -> None:
    module, requested = library("torch.nn.attention.flex_attention", flex_attention=len), Requested()
    redirect_library(module, requested)
    words = torch.ones(2, 3, 5, 4, requires_grad=True)
    mask = module.create_block_mask(lambda *place: place[2] >= place[3], None, None, 5, 5, device="cuda").to("cuda")
    answer, sums = module.flex_attention(
        words, words[:, :1], words[:, 1:2], block_mask=mask, scale=0.5, return_lse=True
    )
    answer.sum().backward()
    assert (answer.shape, sums.shape, requested.masks_by_code) == ((2, 3, 5, 4), (2, 3, 5), True)
    assert words.grad is not None


class AuxRequest(NamedTuple):
    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    lse: Any = None
    max_scores: Any = None


def test_attention_with_a_mask_of_code_answers_besides_what_it_is_asked_for() -> None:
    module = library("torch.nn.attention.flex_attention", flex_attention=len, AuxOutput=AuxOutput)
    redirect_library(module, Requested())
    words = torch.ones(2, 3, 5, 4)
    answer, besides = module.flex_attention(words, words, words, return_aux=AuxRequest(lse=True))
    assert (answer.shape, besides.lse.shape, besides.max_scores) == ((2, 3, 5, 4), (2, 3, 5), None)
    both = module.flex_attention(words, words, words, return_aux=AuxRequest(lse=True, max_scores=True))[1]
    assert both.max_scores.shape == (2, 3, 5)


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
    """Two copies of so many parts."""

    ndim = 2

    def __init__(self, parts: int = 4) -> None:
        self.parts = parts

    def size(self, dimension: int) -> int:
        return (2, self.parts)[dimension]


def test_of_a_mesh_with_copies_the_parts_are_told() -> None:
    name = "torch.distributed.fsdp._fully_shard._fully_shard"
    module, requested = library(name, fully_shard=lambda: None, FSDPModule=Sharded), Requested()
    redirect_library(module, requested)
    module.fully_shard(Network(), mesh=Mesh())
    assert requested.shards == 4


@pytest.mark.parametrize(("meshes", "parts"), [((4, 0), 4), ((0, 4), 4), ((8, 0, 4), 4), ((0, 0), 0)])
def test_of_several_calls_the_fewest_parts_count_and_one_without_a_mesh_forgets_none(
    meshes: tuple[int, ...], parts: int
) -> None:
    name = "torch.distributed.fsdp._fully_shard._fully_shard"
    module, requested = library(name, fully_shard=lambda: None, FSDPModule=Sharded), Requested()
    redirect_library(module, requested)
    for size in meshes:
        module.fully_shard(Network(), **({"mesh": Mesh(size)} if size else {}))
    assert requested.shards == parts


class Block(nn.Module):
    """One of the parts that policies name: 100 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x)
        return output


def wrapper(requested: Requested) -> Any:
    """FullyShardedDataParallel of this torch, as a capture has it; that of other tests stays as it is."""
    own = type("FullyShardedDataParallel", (fully_sharded_data_parallel.FullyShardedDataParallel,), {})
    name = "torch.distributed.fsdp.fully_sharded_data_parallel"
    module = library(name, FullyShardedDataParallel=own, _auto_wrap=fully_sharded_data_parallel._auto_wrap)
    redirect_library(module, requested)
    return module.FullyShardedDataParallel


POLICIES = {
    "classes": ModuleWrapPolicy({Block}),
    "a function": functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    "by choice": CustomPolicy(lambda part: isinstance(part, Block)),
    "sizes": functools.partial(size_based_auto_wrap_policy, min_num_params=100),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_wrapped_network_stays_whole_and_is_gathered_in_the_units_of_its_policy(policy: str) -> None:
    requested, network = Requested(), nn.Sequential(*(Block() for _ in range(10)))
    wrapped = wrapper(requested)(network, auto_wrap_policy=POLICIES[policy], device_mesh=Mesh())
    assert torch.equal(wrapped(torch.ones(2, 10)), network(torch.ones(2, 10)))
    assert [id(each) for each in wrapped.parameters()] == [id(each) for each in network.parameters()]
    assert (requested.is_sharded, requested.shards, gathered_ratio(requested.sharded)) == (True, 4, 0.2)
    assert unwrapped(wrapped) is network


def test_a_network_without_a_policy_and_one_that_keeps_what_it_gathered_are_whole_at_once() -> None:
    for settings in (
        {},
        {"auto_wrap_policy": POLICIES["classes"], "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    ):
        requested = Requested()
        wrapper(requested)(nn.Sequential(Block(), Block(), Block(), Block()), **settings)
        assert (requested.is_sharded, requested.shards, gathered_ratio(requested.sharded)) == (True, 0, 1.0)


def test_copies_on_each_gpu_are_not_taken_for_parts() -> None:
    requested = Requested()
    wrapper(requested)(Block(), sharding_strategy=ShardingStrategy.NO_SHARD)
    assert (requested.is_sharded, requested.sharded) == (False, [])


def test_a_wrapped_network_trains_with_the_calls_that_scripts_make_on_it() -> None:
    requested = Requested()
    kind = wrapper(requested)
    wrapped = kind(Block(), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    with wrapped.no_sync(), kind.summon_full_params(wrapped), kind.state_dict_type(wrapped, "full"):
        wrapped(torch.ones(2, 10)).sum().backward()
    assert float(wrapped.clip_grad_norm_(0.5)) > 0.5
    assert torch.linalg.vector_norm(next(wrapped.parameters()).grad) <= 0.5 + 1e-4
    assert (wrapped.check_is_root(), requested.half) == (True, "bf16")


def test_weights_that_are_a_shape_only_are_filled_as_the_script_says() -> None:
    def fill(part: nn.Module) -> None:
        part.to_empty(device="cpu", recurse=False)
        for each in part.parameters(recurse=False):
            nn.init.constant_(each, 3.0)

    with torch.device("meta"):
        first, second = Block(), Block()
    kind = wrapper(Requested())
    assert bool((next(kind(first, param_init_fn=fill).parameters()) == 3.0).all())
    assert not next(kind(second).parameters()).is_meta


@pytest.mark.parametrize(
    ("stage", "is_sharded", "in_parts"), [(0, False, False), (1, False, True), (2, False, True), (3, True, False)]
)
@pytest.mark.parametrize("way", ["config", "config_params", "file", "arguments"])
def test_the_stage_that_a_configuration_of_deepspeed_names_is_remembered(
    stage: int, is_sharded: bool, in_parts: bool, way: str, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"zero_optimization": {"stage": stage}} if stage else {}
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(config))
    ways: dict[str, dict[str, Any]] = {
        "config": {"config": config},
        "config_params": {"config_params": config},
        "file": {"config": str(file)},
        "arguments": {"args": Namespace(deepspeed_config=file)},
    }
    given = ways[way]
    module, requested = library("deepspeed", initialize=lambda **settings: settings), Requested()
    redirect_library(module, requested)
    assert module.initialize(**given) == given
    assert (requested.is_sharded, requested.state_in_parts) == (is_sharded, in_parts)


@pytest.mark.parametrize(
    "config", [None, "absent.json", {"zero_optimization": None}, {"zero_optimization": {"stage": "?"}}]
)
def test_a_configuration_of_deepspeed_that_cannot_be_read_names_no_stage(config: object) -> None:
    module, requested = library("deepspeed", initialize=lambda **settings: settings), Requested()
    redirect_library(module, requested)
    module.initialize(config=config)
    assert (requested.is_sharded, requested.state_in_parts) == (False, False)


@pytest.mark.parametrize("name", ["accelerate.accelerator", "lightning.fabric.connector", "transformers.training_args"])
def test_a_release_that_calls_it_otherwise_is_left_as_it_is(name: str) -> None:
    module = library(name)
    before = dict(vars(module))
    redirect_library(module, Requested())
    assert vars(module) == before
