"""Names to policies. A new policy is one file and one line here."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import cleandoc, getmodule
from typing import Any, get_origin, get_type_hints

from scheduler_service.core.errors import PolicyParameterError, UnknownPolicyError
from scheduler_service.core.view import Policy
from scheduler_service.policies.b_greedy import BGreedy
from scheduler_service.policies.best_fit import BestFit
from scheduler_service.policies.c_greedy import CGreedy
from scheduler_service.policies.drf import DominantResourceFairness
from scheduler_service.policies.elastic import Elastic
from scheduler_service.policies.fifo import Fifo
from scheduler_service.policies.horus import Horus
from scheduler_service.policies.i_greedy import IGreedy
from scheduler_service.policies.kubernetes_default import KubernetesDefault
from scheduler_service.policies.obp import OpportunisticBinPacking
from scheduler_service.policies.ojpap import Ojpap
from scheduler_service.policies.ojpp import Ojpp
from scheduler_service.policies.ojpp_greedy import OjppGreedy
from scheduler_service.policies.optimus import Optimus
from scheduler_service.policies.pab import PerformanceAwareBinPacking
from scheduler_service.policies.pollux import Pollux
from scheduler_service.policies.sjf import Sjf
from scheduler_service.policies.sjf_bsbf import SjfBsbf
from scheduler_service.policies.sjf_ffs import SjfFfs
from scheduler_service.policies.srtf import Srtf
from scheduler_service.policies.termination_elastic import TerminationElastic
from scheduler_service.policies.tetris import Tetris
from scheduler_service.policies.tiresias import Tiresias


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy as it is registered.

    Attributes:
        policy: Its class.
        defaults: The parameters that differ from those of the class.
        summary: Instead of the first line of its module.
        shares_gpus: It may let jobs share a GPU.
        touches_running: It may stop, move or reshape jobs that run.
        chooses_counts: It chooses among the numbers of GPUs that a job allows.
    """

    policy: type[Any]
    defaults: Mapping[str, object] = field(default_factory=dict)
    summary: str = ""
    shares_gpus: bool = False
    touches_running: bool = False
    chooses_counts: bool = False


POLICIES: Mapping[str, PolicyEntry] = {
    "fifo": PolicyEntry(Fifo),
    "horus": PolicyEntry(Horus, shares_gpus=True),
    "horus_f": PolicyEntry(
        Horus,
        {"queues": 3},
        "Horus with three fair queues: interference-aware placement, no class of job starves.",
        shares_gpus=True,
    ),
    "sjf": PolicyEntry(Sjf),
    "srtf": PolicyEntry(Srtf, touches_running=True),
    "tiresias": PolicyEntry(Tiresias, touches_running=True),
    "sjf_ffs": PolicyEntry(SjfFfs, shares_gpus=True),
    "sjf_bsbf": PolicyEntry(SjfBsbf, shares_gpus=True),
    "best_fit": PolicyEntry(BestFit, shares_gpus=True),
    "i_greedy": PolicyEntry(IGreedy, shares_gpus=True),
    "b_greedy": PolicyEntry(BGreedy, shares_gpus=True),
    "c_greedy": PolicyEntry(CGreedy, shares_gpus=True),
    "ojpp_greedy": PolicyEntry(OjppGreedy, shares_gpus=True),
    "ojpp": PolicyEntry(Ojpp, shares_gpus=True),
    "ojpap": PolicyEntry(Ojpap, shares_gpus=True, touches_running=True),
    "obp": PolicyEntry(OpportunisticBinPacking, shares_gpus=True),
    "pab": PolicyEntry(PerformanceAwareBinPacking, shares_gpus=True, touches_running=True),
    "kubernetes_default": PolicyEntry(KubernetesDefault, chooses_counts=True),
    "elastic": PolicyEntry(Elastic, touches_running=True, chooses_counts=True),
    "termination_elastic": PolicyEntry(TerminationElastic, touches_running=True, chooses_counts=True),
    "optimus": PolicyEntry(Optimus, touches_running=True, chooses_counts=True),
    "pollux": PolicyEntry(Pollux, touches_running=True, chooses_counts=True),
    "drf": PolicyEntry(DominantResourceFairness, touches_running=True, chooses_counts=True),
    "tetris": PolicyEntry(Tetris),
}


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
        name: A key of `POLICIES`.
        parameters: Some of its parameters; the others take their defaults.

    Raises:
        UnknownPolicyError: No policy has this name.
        PolicyParameterError: A parameter does not exist, is of the wrong type, or has an impossible value.
    """
    entry = _entry(name)
    hints = get_type_hints(entry.policy)
    known = {parameter.name: hints[parameter.name] for parameter in fields(entry.policy)}
    for parameter, value in parameters.items():
        if parameter not in known:
            raise PolicyParameterError(
                f"policy {name} has no parameter {parameter!r}; valid are {', '.join(sorted(known)) or 'none'}"
            )
        _require_type(name, parameter, known[parameter], value)
    policy: Policy = entry.policy(**{**entry.defaults, **parameters})
    return policy


def _entry(name: str) -> PolicyEntry:
    entry = POLICIES.get(name)
    if entry is None:
        similar = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f" (did you mean {similar[0]}?)" if similar else ""
        raise UnknownPolicyError(f"there is no policy {name!r}{hint}; valid names are {', '.join(sorted(POLICIES))}")
    return entry


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


def describe(name: str) -> PolicyDescription:
    """Return what a policy does and what can be set, read from its own module.

    Raises:
        UnknownPolicyError: No policy has this name.
    """
    entry = _entry(name)
    module = getmodule(entry.policy)
    text = cleandoc((module.__doc__ if module is not None else None) or "")
    headings = _headings(text)
    hints = get_type_hints(entry.policy)
    return PolicyDescription(
        name=name,
        summary=entry.summary or text.splitlines()[0],
        source=headings["Source"],
        cost=headings["Cost"],
        parameters=tuple(
            ParameterDescription(
                name=parameter.name,
                type=_type_name(hints[parameter.name]),
                default=entry.defaults.get(parameter.name, _default(parameter)),
                description=str(parameter.metadata["description"]),
            )
            for parameter in fields(entry.policy)
        ),
    )


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
