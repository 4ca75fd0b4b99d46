"""certs: an authority and certificates with roles, for mutual TLS."""

from __future__ import annotations

from pathlib import Path

import click

from cotenant.access.certificates import AUTHORITY, Authority
from cotenant.access.roles import ROLE_MEANINGS, Role
from cotenant.access.tokens import add_token, revoke_tokens
from cotenant.cli.session import show, tell
from cotenant.command_groups import ListedGroup
from cotenant.errors import InputError
from cotenant.names import NAME_PATTERN

_DAYS = click.IntRange(1, 3_650)
_FOLDER = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default="here",
    help="Where the authority and its certificates lie.",
)
_VALID = click.option("--days", type=_DAYS, default=365, show_default=True, help="How long it is valid.")
_ROLES = "\b\nRoles:\n" + "\n".join(f"  {role:<10} {meaning}" for role, meaning in ROLE_MEANINGS.items())
_ISSUE = f"{_ROLES}\n\nExample:  cotenant certs issue node node-1"


@click.group(cls=ListedGroup)
def certs() -> None:
    """Make an authority and certificates with roles, and renew them; needs openssl."""


@certs.command(epilog="Example:  cotenant certs init --folder ~/cluster-certificates")
@_FOLDER
def init(folder: Path) -> None:
    """Make an authority: ca.pem goes to every machine, ca.key stays secret."""
    authority = Authority(folder=folder)
    authority.make()
    tell(f"keep {authority.key_file(AUTHORITY)} to yourself: who has it can be everyone")
    show(str(authority.certificate_file(AUTHORITY)))


@certs.command(epilog=_ISSUE)
@click.argument("role", type=click.Choice([role.value for role in Role]), metavar="ROLE")
@click.argument("name")
@click.option("--host", "hosts", multiple=True, help="Under which a service is called; may be given several times.")
@_VALID
@_FOLDER
def issue(role: str, name: str, hosts: tuple[str, ...], days: int, folder: Path) -> None:
    """Make a key and a certificate for NAME, who has ROLE; a node's NAME is its --node-id."""
    authority = Authority(folder=folder)
    wanted = Role(role)
    authority.issue(wanted, name, hosts=hosts, days=days)
    if wanted in (Role.SCHEDULER, Role.PREDICTOR) and not hosts:
        tell(f"{name} has no --host: who calls it by a host name will not trust it")
    show(f"{authority.certificate_file(name)} {authority.key_file(name)}")


@certs.command(epilog="Example:  cotenant certs renew --within-days 30")
@click.argument("names", nargs=-1)
@click.option("--within-days", type=_DAYS, default=30, show_default=True, help="Without NAMES: those that end so soon.")
@_VALID
@_FOLDER
def renew(names: tuple[str, ...], within_days: int, days: int, folder: Path) -> None:
    """Sign the certificates NAMES again, with the same keys, roles and hosts; then start their programs again."""
    authority = Authority(folder=folder)
    chosen = names or tuple(name for name in authority.names() if authority.ends_within(name, days=within_days))
    for name in chosen:
        authority.renew(name, days=days)
        show(str(authority.certificate_file(name)))
    if not chosen:
        tell(f"none of {len(authority.names())} ends within {within_days} days")


@certs.command(epilog="Example:  cotenant certs token viewer screen --callers-file callers")
@click.argument("role", type=click.Choice([role.value for role in Role]))
@click.argument("name")
@click.option(
    "--callers-file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Tokens that the services accept; a line is added, or that of NAME replaced.",
)
@_FOLDER
def token(role: str, name: str, callers_file: Path, folder: Path) -> None:
    """Make a token for NAME, who has ROLE, in NAME.token; services with that --callers-file know it within a second."""
    if not NAME_PATTERN.fullmatch(name):
        raise InputError(f"{name!r} cannot be a name", remedy="up to 63 letters, digits, '.', '_' or '-'")
    path = folder / f"{name}.token"
    try:
        add_token(callers_file, path, Role(role), name)
    except OSError as error:
        raise InputError(f"cannot write {error.filename}: {error.strerror}", remedy="name another --folder") from error
    show(str(path))


@certs.command(epilog="Example:  cotenant certs revoke alice --revoked-file revoked --callers-file callers")
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--revoked-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keys that the services deny; a line is added.",
)
@click.option(
    "--callers-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Tokens that the services accept; the lines of NAMES are removed.",
)
@_FOLDER
def revoke(names: tuple[str, ...], revoked_file: Path | None, callers_file: Path | None, folder: Path) -> None:
    """Deny every certificate of the keys of NAMES, or their tokens; services with that file do so within a second.

    Streams that are open (an agent's, a watch) end with their next message.
    """
    if revoked_file is None and callers_file is None:
        remedy = "--revoked-file FILE denies certificates, --callers-file FILE tokens"
        raise InputError("nothing says what is to be revoked", remedy=remedy)
    if callers_file is not None:
        revoke_tokens(callers_file, names)
        show("\n".join(f"{name} {callers_file}" for name in names))
    if revoked_file is not None:
        authority = Authority(folder=folder)
        for name in names:
            authority.revoke(name, revoked_file=revoked_file)
            show(f"{name} {revoked_file}")


@certs.command("list", epilog="Example:  cotenant certs list --within-days 30")
@click.option("--within-days", type=_DAYS, default=30, show_default=True, help="Those that end so soon are marked.")
@_FOLDER
def list_(within_days: int, folder: Path) -> None:
    """List who has a certificate, with the role and the day on which it ends."""
    authority = Authority(folder=folder)
    names = authority.names()
    if not names:
        tell(f"no certificate was issued in {folder.absolute()} yet; `cotenant certs issue ROLE NAME` makes one")
    for name in names:
        soon = f"  ends within {within_days} days" if authority.ends_within(name, days=within_days) else ""
        until = authority.last_day_of(name) or "unreadable"
        show(f"{name:<24}{authority.role_of(name) or 'no role':<12}until {until}{soon}")
