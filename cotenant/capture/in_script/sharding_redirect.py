"""Libraries that lay what a job trains in parts on several GPUs: here it stays whole, and the parts are remembered."""

# ruff: noqa: ANN401 (the libraries are the script's own: they are handed in, and nothing of them has a type here)
from __future__ import annotations

import contextlib
import functools
import inspect
import json
import sys
from pathlib import Path
from typing import Any

_HALVES = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}
_STAYS_WHOLE = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
"""Strategies of FullyShardedDataParallel under which what was gathered is kept until the backward pass."""
_OWN_WALKS = ("apply", "_apply", "named_parameters", "named_buffers")
"""What FullyShardedDataParallel does in a way of its own, which needs its parts."""
_CONFIG_CHARACTERS_MAX = 1 << 20


def _redirect_fully_shard(module: Any, requested: Any) -> None:
    """Leaves networks whole whose weights would lie in parts on several GPUs: no export reads parts."""
    own, parts = module.fully_shard, module.FSDPModule
    calls = [name for name in vars(parts) if not name.startswith("_")]

    @functools.wraps(own)
    def fully_shard(network: Any, *args: Any, **named: Any) -> Any:
        _note_parts(requested, _shards_of(named.get("mesh")))
        _note_half(requested, named.get("mp_policy"))
        stays_whole = named.get("reshard_after_forward") is False
        networks = list(network) if isinstance(network, (list, tuple)) else [network]
        requested.sharded.append((networks, stays_whole))
        for each in networks:
            for name in calls:
                setattr(each, name, lambda *args, **named: None)
        return network

    module.fully_shard = fully_shard


def _redirect_wrapper(module: Any, requested: Any) -> None:
    """Makes a mere wrapper of FullyShardedDataParallel, whose units are those that its policy names."""
    kind = module.FullyShardedDataParallel
    signature = inspect.signature(kind.__init__)
    plain = next(each for each in kind.__mro__ if each.__name__ == "Module")

    def init(self: Any, network: Any, *args: Any, **named: Any) -> None:
        asked = signature.bind(self, network, *args, **named).arguments
        plain.__init__(self)
        self._fsdp_wrapped_module = network
        _materialize(network, asked.get("param_init_fn"))
        strategy = getattr(asked.get("sharding_strategy"), "name", "FULL_SHARD")
        _note_half(requested, asked.get("mixed_precision"))
        if strategy != "NO_SHARD":
            _note_parts(requested, _shards_of(asked.get("device_mesh")) or _size_of(asked.get("process_group")))
            stays_whole = strategy in _STAYS_WHOLE
            units = [*_units_of(module, network, asked.get("auto_wrap_policy")), network]
            requested.sharded += [([each], stays_whole) for each in units]

    kind.__init__ = init
    kind.forward = lambda self, *args, **named: self._fsdp_wrapped_module(*args, **named)
    for name in _OWN_WALKS:
        setattr(kind, name, getattr(plain, name))
    kind.check_is_root = lambda self: True
    kind.no_sync = lambda self: contextlib.nullcontext()
    kind.clip_grad_norm_ = _clip_gradients
    kind.register_comm_hook = lambda *args, **named: None
    for name in ("state_dict_type", "summon_full_params"):
        setattr(kind, name, staticmethod(lambda *args, **named: contextlib.nullcontext()))
    for name in ("set_state_dict_type", "get_state_dict_type"):
        setattr(kind, name, staticmethod(lambda *args, **named: None))


def _units_of(module: Any, network: Any, policy: Any) -> list[Any]:
    """The parts of a network that a policy gathers on their own, inner ones first; a policy of another release none."""
    found: list[Any] = []

    def note(unit: Any, *args: Any, **named: Any) -> Any:
        found.append(unit)
        return unit

    if policy is not None:
        with contextlib.suppress(TypeError, AttributeError):
            module._auto_wrap(network, policy, set(), set(), {"mixed_precision": None}, note)
    return found


def _materialize(network: Any, fill: Any) -> None:
    """Gives weights that are a shape only what they are to be filled with, as each process would its parts."""
    if not any(each.is_meta for each in network.parameters()):
        return
    if fill is None:
        network.to_empty(device="cpu")
    else:
        network.apply(fill)


def _clip_gradients(self: Any, max_norm: float, norm_type: float = 2.0) -> Any:
    clip = sys.modules["torch"].nn.utils.clip_grad_norm_
    return clip(self.parameters(), max_norm, norm_type)


def _redirect_deepspeed(module: Any, requested: Any) -> None:
    """Remembers which stage of ZeRO the configuration of DeepSpeed names."""
    own = module.initialize

    @functools.wraps(own)
    def initialize(*args: Any, **named: Any) -> Any:
        script = named.get("args", args[0] if args else None)
        config = named.get("config") or named.get("config_params") or getattr(script, "deepspeed_config", None)
        stage = _stage_of(config)
        if stage >= 3:
            _note_parts(requested, 0)
        requested.state_in_parts = requested.state_in_parts or stage in (1, 2)
        return own(*args, **named)

    module.initialize = initialize


def _stage_of(config: Any) -> int:
    """The stage that a configuration names, or one in a file does; 0 = none, or it cannot be read."""
    try:
        if not isinstance(config, dict):
            with Path(config).open(encoding="utf-8") as file:
                config = json.loads(file.read(_CONFIG_CHARACTERS_MAX))
        return int(config.get("zero_optimization", {}).get("stage", 0))
    except (OSError, TypeError, ValueError, AttributeError):
        return 0


def _note_parts(requested: Any, shards: int) -> None:
    """Remembers that weights lie in parts; of several numbers the smallest, whose parts are the largest."""
    requested.is_sharded = True
    requested.shards = min(filter(None, (requested.shards, shards)), default=0)


def _note_half(requested: Any, policy: Any) -> None:
    requested.half = _HALVES.get(str(getattr(policy, "param_dtype", None)), requested.half)


def _shards_of(mesh: Any) -> int:
    """In how many parts a mesh lays weights: its last dimension, behind one of copies; 0 = it does not say."""
    try:
        return int(mesh.size(mesh.ndim - 1))
    except Exception:  # a mesh of another release, or none
        return 0


def _size_of(group: Any) -> int:
    """In how many parts a group of processes lays weights, or the first one of a group and one of copies; 0 = none."""
    try:
        return int((group[0] if isinstance(group, tuple) else group).size())
    except Exception:  # a group of another release, or none
        return 0


SHARDING_LIBRARIES = {
    "torch.distributed.fsdp._fully_shard._fully_shard": _redirect_fully_shard,
    "torch.distributed._composable.fsdp.fully_shard": _redirect_fully_shard,  # before 2.6
    "torch.distributed.fsdp.fully_sharded_data_parallel": _redirect_wrapper,
    "deepspeed": _redirect_deepspeed,
}
"""What is changed in each, by the module that holds it."""
