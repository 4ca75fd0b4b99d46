"""Who calls: read from the connection and its metadata, never from the request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from cotenant.access.revoked import RevokedKeys
from cotenant.access.roles import Role, roles_of
from cotenant.access.tokens import KnownTokens, presented_token
from cotenant.errors import CotenantError
from cotenant.names import NAME

URI_SCHEME: Final = "cotenant"
_URI: Final = re.compile(rf"{URI_SCHEME}://([a-z]+)/({NAME})")
_HOW_TO_ISSUE: Final = "`cotenant certs issue ROLE NAME` makes a certificate with a role"


class AccessError(CotenantError):
    """A call was refused because of who makes it."""


class NotIdentifiedError(AccessError):
    """The caller is unknown."""


class NotPermittedError(AccessError):
    """The caller is known and may not do this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a call.

    Attributes:
        role: None = callers are not told apart here: everyone who reaches the port may do everything.
        name: Of the user, node or program; empty = unknown.
        address: Host, or "unix"; empty = unknown.
    """

    role: Role | None = None
    name: str = ""
    address: str = ""

    @property
    def acts_for_all(self) -> bool:
        """Whether the jobs of others may be changed."""
        return self.role in (None, Role.OPERATOR)

    @property
    def sees_all(self) -> bool:
        """Whether the jobs of others may be read."""
        return self.acts_for_all or self.role is Role.VIEWER


_NOBODY_IN_PARTICULAR: Final = Caller()
_current: ContextVar[Caller] = ContextVar("caller", default=_NOBODY_IN_PARTICULAR)


def current_caller() -> Caller:
    """Returns who makes the call that is being answered; unknown where there are no rules of access."""
    return _current.get()


def answer_for(caller: Caller) -> None:
    """Notes who makes the call that this task or thread answers from now on."""
    _current.set(caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEvidence:
    """What a connection and a call's metadata tell of the caller, as gRPC hands it over.

    Attributes:
        peer: e.g. ipv4:127.0.0.1:4711 or unix:.
        authentication: Properties of the client's certificate that the server has verified.
        metadata: Of the call.
    """

    peer: str
    authentication: Mapping[str, Iterable[bytes]]
    metadata: Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """How one server tells its callers apart.

    Attributes:
        asks_certificates: Whether the server verifies certificates of clients.
        tokens: Tokens that are accepted; None = none are looked at.
        owner: Name of the account that runs the server: callers of its private Unix socket are that operator.
        serves_roleless: Whether a certificate without a role may do everything, as before there were roles.
        revoked: Keys whose certificates are denied; None = none is.
    """

    asks_certificates: bool = False
    tokens: KnownTokens | None = None
    owner: str = ""
    serves_roleless: bool = False
    revoked: RevokedKeys | None = None

    @property
    def is_open(self) -> bool:
        """Whether everyone who reaches the port may do everything."""
        return not self.asks_certificates and self.tokens is None

    def list_faults(self) -> list[str]:
        """Returns which lists cannot be read, so that what they held before counts, and what to do."""
        lists = [one for one in (self.tokens, self.revoked) if one is not None]
        return [fault for one in lists if (fault := one.fault())]

    def identify(self, evidence: CallEvidence) -> Caller:
        """Returns who calls.

        Raises:
            NotIdentifiedError: Nothing tells, or a token is unknown.
            NotPermittedError: A certificate names no role, or was revoked.
        """
        address = _host_of(evidence.peer)
        if self.is_open:
            return Caller(address=address)
        # Also of a caller who shows a token: a lost machine may hold both.
        self._check_not_revoked(evidence.authentication)
        token = presented_token(evidence.metadata) if self.tokens is not None else ""
        if self.tokens is not None and token:
            return self._holder(self.tokens, token, address)
        if self.asks_certificates and evidence.authentication.get("x509_pem_cert"):
            return self._certified(evidence.authentication, address)
        if evidence.peer.startswith("unix:"):
            return Caller(role=Role.OPERATOR, name=self.owner, address=address)
        raise NotIdentifiedError("this service answers callers that it knows only", remedy=self._way_in())

    def check_still_known(self, evidence: CallEvidence, caller: Caller) -> None:
        """Looks while a stream is open whether its caller would still be let in, as the same one.

        Raises:
            NotIdentifiedError: Its token was taken off the list, or is another caller's by now.
            NotPermittedError: Its certificate was revoked.
        """
        if not self.is_open and self.identify(evidence) != caller:
            raise NotIdentifiedError("the token has another role or name by now", remedy="call again")

    def _check_not_revoked(self, authentication: Mapping[str, Iterable[bytes]]) -> None:
        certificate = next(iter(authentication.get("x509_pem_cert", ())), b"")
        if self.revoked is not None and certificate and self.revoked.denies(certificate):
            name = next(iter(_texts(authentication, "x509_common_name")), "")
            raise NotPermittedError(
                f"the certificate of {name!r} was revoked", remedy=f"ask the operator for another one: {_HOW_TO_ISSUE}"
            )

    def _holder(self, tokens: KnownTokens, token: str, address: str) -> Caller:
        found = tokens.find(token)
        if found is None:
            remedy = (
                "name the file of a token that is in use with --token-file (`cotenant up` makes new ones at each start)"
            )
            raise NotIdentifiedError("the token is unknown here", remedy=remedy)
        return Caller(role=Role(found.role), name=found.name, address=address)

    def _certified(self, authentication: Mapping[str, Iterable[bytes]], address: str) -> Caller:
        uris = [uri for uri in _texts(authentication, "peer_uri") if uri.startswith(f"{URI_SCHEME}:")]
        common_name = next(iter(_texts(authentication, "x509_common_name")), "")
        if not uris and self.serves_roleless:
            # It reaches logs and terminals as it stands.
            return Caller(name=re.sub(r"[^A-Za-z0-9._@ -]", "?", common_name)[:63], address=address)
        if not uris:
            raise NotPermittedError(
                f"the certificate of {common_name!r} names no role", remedy=f"{_HOW_TO_ISSUE}; show that one"
            )
        role_and_name = parse_role_uri(uris[0]) if len(uris) == 1 else None
        if role_and_name is None:
            shown = ", ".join(uri[:100] for uri in uris[:3])
            raise NotPermittedError(
                f"the certificate must name one role as {URI_SCHEME}://ROLE/NAME, it names {shown}",
                remedy=_HOW_TO_ISSUE,
            )
        return Caller(role=role_and_name[0], name=role_and_name[1], address=address)

    def _way_in(self) -> str:
        ways = [
            "a certificate of its client authority (--tls-certificate-file, --tls-key-file)"
        ] * self.asks_certificates
        ways += ["a token (--token-file, metadata `authorization: Bearer TOKEN`)"] * (self.tokens is not None)
        return f"show {' or '.join(ways)}"


def parse_role_uri(uri: str) -> tuple[Role, str] | None:
    """Returns role and name of cotenant://ROLE/NAME; None = it is no such URI."""
    found = _URI.fullmatch(uri)
    if found is None or found[1] not in set(Role):
        return None
    return Role(found[1]), found[2]


def check_permitted(method: str, caller: Caller) -> None:
    """Looks a call up in the table.

    Args:
        method: /SERVICE/METHOD.
        caller: Who makes it.

    Raises:
        NotPermittedError: The caller's role may not make it.
    """
    roles = roles_of(method)
    if roles is None or caller.role is None or caller.role in roles:
        return
    needed = " or ".join(sorted(roles)) or "of no caller"
    raise NotPermittedError(
        f"{method.rpartition('/')[2]} needs the role {needed}, and {caller.name!r} has the role {caller.role}",
        remedy=f"ask the operator for a certificate or a token with that role: {_HOW_TO_ISSUE}",
    )


def _texts(authentication: Mapping[str, Iterable[bytes]], key: str) -> list[str]:
    return [value.decode("utf-8", "replace") for value in authentication.get(key, ())]


def _host_of(peer: str) -> str:
    """ipv4:127.0.0.1:4711 -> 127.0.0.1, ipv6:%5B::1%5D:4711 -> ::1, unix:... -> unix."""
    kind, _, rest = peer.partition(":")
    if kind.startswith("unix"):
        return "unix"
    return unquote(rest).rpartition(":")[0].strip("[]") or kind
