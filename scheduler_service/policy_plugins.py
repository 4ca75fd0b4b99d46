"""Policies of other packages: whatever is installed with an entry point in the group `cotenant.policies`.

    [project.entry-points."cotenant.policies"]
    narrowest_first = "my_package.narrowest_first:NarrowestFirst"

They run with all rights of the program that loads them, as every installed package does. One that cannot be loaded is
named where it is asked for, and costs the others nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from typing import Any, get_type_hints

GROUP = "cotenant.policies"
PLUGINS_MAX = 100
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FAULT_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlugin:
    """A policy of another package.

    Attributes:
        name: How it is chosen.
        package: Name and version of its package.
        kind: Its class; None = it cannot be loaded.
        fault: Why not.
    """

    name: str
    package: str
    kind: type[Any] | None = None
    fault: str = ""


def load_plugins(taken: Container[str]) -> Mapping[str, PolicyPlugin]:
    """Load every policy that is installed; of two with one name the first counts.

    Args:
        taken: Names of the scheduler's own policies, which no plug-in replaces.
    """
    found: dict[str, PolicyPlugin] = {}
    for point in islice(entry_points(group=GROUP), PLUGINS_MAX):
        if point.name not in taken:
            found.setdefault(point.name, _load(point))
    return found


def find_shadowed(taken: Container[str]) -> Sequence[PolicyPlugin]:
    """Return the plug-ins that cannot be chosen, since a policy of the scheduler has their name."""
    fault = "the scheduler has a policy of this name; give the entry point another one"
    return [
        PolicyPlugin(name=point.name, package=_package_of(point), fault=fault)
        for point in islice(entry_points(group=GROUP), PLUGINS_MAX)
        if point.name in taken
    ]


def _package_of(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a package without a name"


def _load(point: EntryPoint) -> PolicyPlugin:
    package = _package_of(point)
    if not _NAME.fullmatch(point.name):
        return PolicyPlugin(name=point.name, package=package, fault="its name is not lower_snake_case")
    try:
        kind = point.load()
        fault = _fault_of(kind)
    except (Exception, SystemExit) as error:  # whatever a foreign module does when it is imported
        kind, fault = None, f"{type(error).__name__}: {error}"
    if fault:
        return PolicyPlugin(name=point.name, package=package, fault=fault[:_FAULT_CHARACTERS_MAX])
    return PolicyPlugin(name=point.name, package=package, kind=kind)


def _fault_of(kind: object) -> str:
    """Return what keeps something from being a policy's class; empty = nothing that can be seen from outside."""
    if not isinstance(kind, type) or not is_dataclass(kind) or not callable(getattr(kind, "decide", None)):
        return f"{kind!r} is no dataclass with a method decide(view)"
    defaults = {one.name: _default_of(one) for one in fields(kind)}
    missing = [name for name, value in defaults.items() if value is MISSING]
    if missing:
        return f"parameter {missing[0]} of {kind.__name__} has no default"
    # Both are needed to describe it, and what cannot be described would break the list of all.
    json.dumps(defaults)
    get_type_hints(kind)
    return ""


def _default_of(parameter: Field[Any]) -> object:
    return parameter.default if parameter.default_factory is MISSING else parameter.default_factory()
