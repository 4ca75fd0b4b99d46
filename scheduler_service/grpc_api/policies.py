"""Policies between contract and registry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from google.protobuf import json_format, struct_pb2

from cotenant.v1 import scheduling_pb2
from scheduler_service import policy_registry
from scheduler_service.core import errors as core_errors
from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.errors import FieldViolation, InvalidRequestError, UnknownPolicyError

_NONE: Final[Mapping[str, object]] = MappingProxyType({})


def make(name: str, parameters: Mapping[str, Any]) -> Policy:
    """Build a policy.

    Raises:
        UnknownPolicyError: No such policy; the message lists the valid names.
        InvalidRequestError: No such parameter, or not its value; likewise.
    """
    try:
        return policy_registry.make_policy(name, parameters)
    except core_errors.UnknownPolicyError as error:
        raise UnknownPolicyError(FieldViolation(field="policy", description=str(error))) from error
    except core_errors.PolicyError as error:
        raise InvalidRequestError(FieldViolation(field="parameters", description=str(error))) from error


def read_parameters(message: struct_pb2.Struct) -> Mapping[str, Any]:
    """Read parameters; whole numbers become integers, which a Struct does not know.

    Raises:
        InvalidRequestError: A number is none.
    """
    try:
        values = json_format.MessageToDict(message)
    except (json_format.Error, ValueError) as error:
        violation = FieldViolation(
            field="parameters", description=f"must be what JSON can hold, every number finite: {error}"
        )
        raise InvalidRequestError(violation) from error
    return {name: _whole(value) for name, value in values.items()}


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value


def effective_parameters(name: str, parameters: Mapping[str, Any]) -> struct_pb2.Struct:
    """Return all parameters of a policy with the defaults filled in.

    Raises:
        UnknownPolicyError: No such policy.
        InvalidRequestError: No such parameter, or not its value.
    """
    make(name, parameters)
    return _filled(name, json.dumps(dict(parameters)))


@lru_cache(maxsize=256)
def _filled(name: str, parameters: str) -> struct_pb2.Struct:
    """Return the parameters, given as JSON, with the defaults; what is returned is not to be changed."""
    defaults = {one.name: one.default for one in policy_registry.describe(name).parameters}
    filled = struct_pb2.Struct()
    filled.update(json.loads(json.dumps(defaults)) | json.loads(parameters))
    return filled


def policy_messages(*, active: str, given: Mapping[str, object] = _NONE) -> Iterator[scheduling_pb2.Policy]:
    """Yield every policy by name.

    Args:
        active: The one in use; empty = none is.
        given: Its parameters; absent ones have their defaults.
    """
    for name in policy_registry.policy_names():
        described = policy_registry.describe(name)
        yield scheduling_pb2.Policy(
            name=name,
            summary=described.summary,
            source=described.source,
            cost=described.cost,
            active=name == active,
            parameters=[
                scheduling_pb2.PolicyParameter(
                    name=parameter.name,
                    type=parameter.type,
                    default_value=json.dumps(parameter.default),
                    description=parameter.description,
                    value_in_use=json.dumps(given.get(parameter.name, parameter.default)) if name == active else "",
                )
                for parameter in described.parameters
            ],
        )
