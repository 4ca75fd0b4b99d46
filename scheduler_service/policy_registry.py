"""Names to policies. A new policy is one file in `policies/` and one line in the table here, or a plug-in."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from importlib import import_module
from inspect import cleandoc, getmodule
from typing import Any, get_origin, get_type_hints

from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.core.errors import POLICY_FAULTS, PolicyError, PolicyParameterError, UnknownPolicyError
from scheduler_service.core.planning.policy_parameters import require_interval
from scheduler_service.policy_plugins import PolicyPlugin, find_shadowed, load_plugins


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy as it is registered.

    Attributes:
        path: Its module in `scheduler_service.policies` and its class there: `fifo.Fifo`.
        defaults: The parameters that differ from those of the class.
        summary: Instead of the first line of its module.
        shares_gpus: It may let jobs share a GPU.
        touches_running: It may stop, move or reshape jobs that run.
        chooses_counts: It chooses among the numbers of GPUs that a job allows.
    """

    path: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    summary: str = ""
    shares_gpus: bool = False
    touches_running: bool = False
    chooses_counts: bool = False


POLICIES: Mapping[str, PolicyEntry] = {
    "fifo": PolicyEntry("fifo.Fifo"),
    "horus": PolicyEntry("horus.Horus", shares_gpus=True),
    "horus_f": PolicyEntry(
        "horus.Horus",
        {"queues": 3},
        "Horus with three fair queues: interference-aware placement, no class of job starves.",
        shares_gpus=True,
    ),
    "sjf": PolicyEntry("sjf.Sjf"),
    "srtf": PolicyEntry("srtf.Srtf", touches_running=True),
    "tiresias": PolicyEntry("tiresias.Tiresias", touches_running=True),
    "sjf_ffs": PolicyEntry("sjf_ffs.SjfFfs", shares_gpus=True),
    "sjf_bsbf": PolicyEntry("sjf_bsbf.SjfBsbf", shares_gpus=True),
    "best_fit": PolicyEntry("best_fit.BestFit", shares_gpus=True),
    "i_greedy": PolicyEntry("i_greedy.IGreedy", shares_gpus=True),
    "b_greedy": PolicyEntry("b_greedy.BGreedy", shares_gpus=True),
    "c_greedy": PolicyEntry("c_greedy.CGreedy", shares_gpus=True),
    "ojpp_greedy": PolicyEntry("ojpp_greedy.OjppGreedy", shares_gpus=True),
    "ojpp": PolicyEntry("ojpp.Ojpp", shares_gpus=True),
    "ojpap": PolicyEntry("ojpap.Ojpap", shares_gpus=True, touches_running=True),
    "obp": PolicyEntry("obp.OpportunisticBinPacking", shares_gpus=True),
    "pab": PolicyEntry("pab.PerformanceAwareBinPacking", shares_gpus=True, touches_running=True),
    "kubernetes_default": PolicyEntry("kubernetes_default.KubernetesDefault", chooses_counts=True),
    "elastic": PolicyEntry("elastic.Elastic", touches_running=True, chooses_counts=True),
    "termination_elastic": PolicyEntry(
        "termination_elastic.TerminationElastic", touches_running=True, chooses_counts=True
    ),
    "optimus": PolicyEntry("optimus.Optimus", touches_running=True, chooses_counts=True),
    "pollux": PolicyEntry("pollux.Pollux", touches_running=True, chooses_counts=True),
    "drf": PolicyEntry("drf.DominantResourceFairness", touches_running=True, chooses_counts=True),
    "tetris": PolicyEntry("tetris.Tetris"),
}


def _class_at(path: str) -> type[Any]:
    module, _, name = path.rpartition(".")
    found: type[Any] = getattr(import_module(f"scheduler_service.policies.{module}"), name)
    return found


def _plugged(kind: type[Any]) -> PolicyEntry:
    """Return the entry of a plug-in, which states as attributes of its class what it may do."""
    return PolicyEntry(
        f"{kind.__module__}:{kind.__qualname__}",
        shares_gpus=bool(getattr(kind, "shares_gpus", False)),
        touches_running=bool(getattr(kind, "touches_running", False)),
        chooses_counts=bool(getattr(kind, "chooses_counts", False)),
    )


# All at once, when a program starts: a wrong path shows there, and a program that runs while another release is
# installed never loads a policy of the new one.
_CLASSES = {entry.path: _class_at(entry.path) for entry in POLICIES.values()}
_PLUGINS = load_plugins(taken=POLICIES)
_ENTRIES = dict(POLICIES)
for _plugin in _PLUGINS.values():
    if _plugin.kind is not None:
        _ENTRIES[_plugin.name] = _plugged(_plugin.kind)
        _CLASSES[_ENTRIES[_plugin.name].path] = _plugin.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterDescription:
    """One parameter of a policy."""

    name: str
    type: str
    default: object
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDescription:
    """What an operator wants to know before choosing."""

    name: str
    summary: str
    source: str
    cost: str
    parameters: tuple[ParameterDescription, ...]


def make_policy(name: str, parameters: Mapping[str, object]) -> Policy:
    """Build a policy.

    Args:
        name: One of `policy_names()`.
        parameters: Some of its parameters; the others take their defaults.

    Raises:
        UnknownPolicyError: No policy has this name.
        PolicyParameterError: A parameter does not exist, is of the wrong type, or has an impossible value.
    """
    entry = policy_entry(name)
    kind = _CLASSES[entry.path]
    known = _parameter_types(entry.path)
    for parameter, value in parameters.items():
        if parameter not in known:
            raise PolicyParameterError(
                f"policy {name} has no parameter {parameter!r}; valid are {', '.join(sorted(known)) or 'none'}"
            )
        _require_type(name, parameter, known[parameter], value)
    policy = _built(kind, name, {**entry.defaults, **parameters})
    require_interval(policy)
    return policy


def _built(kind: type[Any], name: str, parameters: Mapping[str, object]) -> Policy:
    try:
        policy: Policy = kind(**parameters)
    except PolicyError:
        raise
    except POLICY_FAULTS as error:  # whatever a foreign class does
        raise PolicyParameterError(f"policy {name} cannot be built: {type(error).__name__}: {error}") from error
    return policy


BUILDING = (_built.__code__,)
"""The code that calls a policy to build it: it may not come back."""


@cache
def _parameter_types(path: str) -> Mapping[str, Any]:
    """Return the parameters of a policy with their types; reading them takes longer than many a decision."""
    kind = _CLASSES[path]
    hints = get_type_hints(kind)
    return {parameter.name: hints[parameter.name] for parameter in fields(kind)}


def unusable_plugins() -> Sequence[PolicyPlugin]:
    """Return the plug-ins that are installed and cannot be chosen, each with its fault."""
    return [*(one for one in _PLUGINS.values() if one.kind is None), *find_shadowed(POLICIES)]


def policy_names() -> Sequence[str]:
    """Return the names of all policies that can be chosen, plug-ins among them."""
    return sorted(_ENTRIES)


def policy_entry(name: str) -> PolicyEntry:
    """Return what is registered under a name.

    Raises:
        UnknownPolicyError: Nothing is, or a plug-in that cannot be loaded.
    """
    entry = _ENTRIES.get(name)
    if entry is not None:
        return entry
    broken = _PLUGINS.get(name)
    if broken is not None:
        raise UnknownPolicyError(f"policy {name!r} of {broken.package} cannot be loaded: {broken.fault}")
    similar = difflib.get_close_matches(name, _ENTRIES, n=1)
    hint = f" (did you mean {similar[0]}?)" if similar else ""
    raise UnknownPolicyError(f"there is no policy {name!r}{hint}; valid names are {', '.join(policy_names())}")


def _is_real(value: float) -> bool:
    """Tells whether a float can hold the number; every comparison with NaN would be false."""
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False


def _require_type(policy: str, parameter: str, wanted: Any, value: object) -> None:  # noqa: ANN401 - a type
    if wanted is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and _is_real(value)
    elif isinstance(wanted, type):
        fits = type(value) is wanted
    else:
        fits = isinstance(value, get_origin(wanted) or object)
    if not fits:
        raise PolicyParameterError(
            f"parameter {parameter} of policy {policy} must be {_type_name(wanted)}, not {value!r}"
        )


@cache
def describe(name: str) -> PolicyDescription:
    """Return what a policy does and what can be set, read from its own module.

    Raises:
        UnknownPolicyError: No policy has this name.
    """
    entry = policy_entry(name)
    kind = _CLASSES[entry.path]
    module = getmodule(kind)
    text = cleandoc((module.__doc__ if module is not None else None) or "")
    headings = _headings(text)
    types = _parameter_types(entry.path)
    return PolicyDescription(
        name=name,
        summary=entry.summary or next(iter(text.splitlines()), name),
        source=headings.get("Source") or f"plug-in of {_PLUGINS[name].package}",
        cost=headings.get("Cost", "not stated"),
        parameters=tuple(
            ParameterDescription(
                name=parameter.name,
                type=_type_name(types[parameter.name]),
                default=entry.defaults.get(parameter.name, _default(parameter)),
                description=_description(parameter, is_plugin=name in _PLUGINS),
            )
            for parameter in fields(kind)
        ),
    )


def _description(parameter: Field[Any], *, is_plugin: bool) -> str:
    """Return what a parameter is; only other people's may say nothing."""
    return str(parameter.metadata.get("description", "") if is_plugin else parameter.metadata["description"])


def _default(parameter: Field[Any]) -> object:
    if parameter.default_factory is not MISSING:
        return parameter.default_factory()
    return parameter.default


def _type_name(kind: Any) -> str:  # noqa: ANN401 - a type
    origin = get_origin(kind)
    if origin is not None:
        return "object" if issubclass(origin, Mapping) else "list"
    return {"bool": "true or false", "int": "integer", "float": "number", "str": "text"}.get(kind.__name__, "value")


def _headings(text: str) -> Mapping[str, str]:
    """Return the paragraphs of a policy's docstring by heading, each on one line."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines()[1:]:
        if line.endswith(":") and not line.startswith(" "):
            lines = found.setdefault(line[:-1], [])
        else:
            lines.append(line.strip())
    return {heading: " ".join(line for line in part if line) for heading, part in found.items()}
