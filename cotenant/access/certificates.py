"""An authority and certificates with roles, made by openssl: from nothing to mutual TLS."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cotenant.access.callers import URI_SCHEME, parse_role_uri
from cotenant.access.certificate_fields import key_sha256
from cotenant.access.revoked import revoke
from cotenant.access.roles import Role
from cotenant.errors import InputError, ProgramError
from cotenant.names import NAME_PATTERN

AUTHORITY: Final = "ca"
AUTHORITY_DAYS: Final = 3_650
HOSTS_MAX: Final = 50
_SECONDS_PER_DAY: Final = 86_400
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_END = re.compile(r"notAfter=(?P<month>[A-Z][a-z]{2}) +(?P<day>[0-9]{1,2}) [0-9:]+ (?P<year>[0-9]{4})")
_TIMEOUT_S: Final = 60.0
_HOST: Final = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_SERVING: Final = (Role.SCHEDULER, Role.PREDICTOR)
_CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A folder with an authority, ca.pem and ca.key, and what it has signed.

    Attributes:
        folder: NAME.pem is a certificate, NAME.key its key with mode 0600.
    """

    folder: Path

    def certificate_file(self, name: str) -> Path:
        """Returns where the certificate of a name lies."""
        return self.folder / f"{name}.pem"

    def key_file(self, name: str) -> Path:
        """Returns where its key lies."""
        return self.folder / f"{name}.key"

    def make(self) -> None:
        """Makes the authority.

        Raises:
            InputError: There is one, or the folder cannot be written.
            ProgramError: openssl is missing or fails.
        """
        self._refuse_present(AUTHORITY, remedy="use it (`cotenant certs issue`), or name another --folder")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        with self._new_files(AUTHORITY) as (certificate, key):
            names = ("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=cotenant authority")
            uses = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
            _openssl("req", "-x509", *_CURVE, *names, "-days", str(AUTHORITY_DAYS), *uses)

    def issue(self, role: Role, name: str, *, hosts: Sequence[str], days: int) -> None:
        """Makes a key and a certificate for the holder of a role.

        Args:
            role: What its holder may do.
            name: Of the user, node or program.
            hosts: Under which a service is called, names or IP addresses.
            days: How long it is valid.

        Raises:
            InputError: There is one of that name, there is no authority, or a name or host is none.
            ProgramError: openssl is missing or fails.
        """
        if not NAME_PATTERN.fullmatch(name) or name == AUTHORITY:
            raise InputError(f"{name!r} cannot be a name", remedy="up to 63 letters, digits, '.', '_' or '-', not ca")
        self._require_authority()
        self._refuse_present(name, remedy=f"`cotenant certs renew {name}` makes it valid for longer")
        alternative_names = ",".join(
            [f"URI:{URI_SCHEME}://{role}/{name}", *_host_names([*hosts, *_own_host(role, name)])]
        )
        with self._new_files(name) as (certificate, key), tempfile.TemporaryDirectory() as scratch:
            request = Path(scratch) / "request"
            _openssl("req", *_CURVE, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
            self._sign(request, certificate, alternative_names, days, Path(scratch))

    def renew(self, name: str, *, days: int) -> None:
        """Signs a certificate again, with the key, the role and the names that it has.

        Raises:
            InputError: There is none of that name, or it names no role.
            ProgramError: openssl is missing or fails.
        """
        self._require_authority()
        self._refuse_unknown(name)
        alternative_names = self._alternative_names(name)
        with self._new_file(name, ".pem") as certificate, tempfile.TemporaryDirectory() as scratch:
            request = Path(scratch) / "request"
            key = ("-key", str(self.key_file(name)))
            _openssl("req", "-new", *key, "-out", str(request), "-subj", f"/CN={name}")
            self._sign(request, certificate, alternative_names, days, Path(scratch))

    def revoke(self, name: str, *, revoked_file: Path) -> None:
        """Denies all certificates of a name's key from now on, and puts certificate and key aside as NAME.*.revoked.

        Args:
            name: Of the user, node or program.
            revoked_file: What the services read.

        Raises:
            InputError: There is none of that name, it cannot be read, or the list cannot be written.
        """
        self._refuse_unknown(name)
        sha256 = key_sha256(self.certificate_file(name).read_bytes())
        if sha256 is None:
            raise InputError(f"{self.certificate_file(name)} is no certificate", remedy="put the right file back")
        # First the list: every holder of the key is denied although the folder cannot be written.
        revoke(revoked_file, sha256, name)
        for path in (self.certificate_file(name), self.key_file(name)):
            try:
                path.replace(path.with_name(f"{path.name}.revoked"))
            except OSError as error:
                raise _unwritable(self.folder, error) from error

    def names(self) -> list[str]:
        """Returns who has a certificate here."""
        return sorted(path.stem for path in self.folder.glob("*.pem") if path.stem != AUTHORITY)

    def ends_within(self, name: str, *, days: int) -> bool:
        """Tells whether a certificate ends within so many days, or has ended."""
        return ends_within(self.certificate_file(name), days=days)

    def last_day_of(self, name: str) -> str:
        """Returns the day on which a certificate ends, as 2030-01-31; empty = it cannot be read.

        Raises:
            ProgramError: openssl is missing.
        """
        found = _END.search(_run(("x509", "-in", str(self.certificate_file(name)), "-noout", "-enddate")).stdout)
        if found is None:
            return ""
        return f"{found['year']}-{_MONTHS.index(found['month']) // 3 + 1:02d}-{int(found['day']):02d}"

    def role_of(self, name: str) -> Role | None:
        """Returns the role that a certificate names; None = none."""
        for part in self._alternative_names(name, must_have_role=False).split(","):
            found = parse_role_uri(part.removeprefix("URI:"))
            if found is not None:
                return found[0]
        return None

    def _alternative_names(self, name: str, *, must_have_role: bool = True) -> str:
        """Reads them as openssl takes them; IP addresses are printed under another name."""
        shown = _openssl("x509", "-in", str(self.certificate_file(name)), "-noout", "-ext", "subjectAltName")
        parts = [
            part.strip().replace("IP Address:", "IP:") for line in shown.splitlines()[1:] for part in line.split(",")
        ]
        if must_have_role and not any(parse_role_uri(part.removeprefix("URI:")) for part in parts):
            raise InputError(
                f"the certificate {name!r} names no role", remedy="`cotenant certs issue ROLE NAME` makes one that does"
            )
        return ",".join(parts)

    def _sign(self, request: Path, certificate: Path, alternative_names: str, days: int, scratch: Path) -> None:
        extensions = scratch / "extensions"
        # The certificate of a node or a user is no server's.
        serves = any(f"URI:{URI_SCHEME}://{role}/" in alternative_names for role in _SERVING)
        extensions.write_text(
            f"subjectAltName={alternative_names}\nbasicConstraints=critical,CA:FALSE\n"
            f"keyUsage=critical,digitalSignature\nextendedKeyUsage=clientAuth{',serverAuth' * serves}\n"
        )
        authority = ("-CA", str(self.certificate_file(AUTHORITY)), "-CAkey", str(self.key_file(AUTHORITY)))
        serial = ("-set_serial", str(secrets.randbits(150)))
        files = ("-in", str(request), "-out", str(certificate), "-extfile", str(extensions))
        _openssl("x509", "-req", *files, *authority, *serial, "-days", str(days))

    def _require_authority(self) -> None:
        missing = [path for path in (self.certificate_file(AUTHORITY), self.key_file(AUTHORITY)) if not path.is_file()]
        if missing:
            raise InputError(
                f"there is no {missing[0]}", remedy="`cotenant certs init` makes an authority, or name --folder"
            )

    def _refuse_unknown(self, name: str) -> None:
        if not NAME_PATTERN.fullmatch(name) or name == AUTHORITY or not self.certificate_file(name).is_file():
            known = ", ".join(self.names()) or "none"
            raise InputError(f"there is no certificate {name!r} in {self.folder}", remedy=f"there are: {known}")

    def _refuse_present(self, name: str, *, remedy: str) -> None:
        for path in (self.certificate_file(name), self.key_file(name)):
            if path.exists() or path.is_symlink():
                raise InputError(f"{path} is there already", remedy=remedy)

    @contextmanager
    def _new_files(self, name: str) -> Iterator[tuple[Path, Path]]:
        """Yields where to write a certificate and its key; they take their places together, or not at all."""
        with self._new_file(name, ".key") as key, self._new_file(name, ".pem") as certificate:
            yield certificate, key

    @contextmanager
    def _new_file(self, name: str, ending: str) -> Iterator[Path]:
        mode = 0o600 if ending == ".key" else 0o644
        arriving = self.folder / f".{name}{ending}.{os.getpid()}"
        try:
            # The mode is there before the content: openssl writes into the file that it finds.
            os.close(os.open(arriving, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            yield arriving
            arriving.chmod(mode)
            arriving.replace(self.folder / f"{name}{ending}")
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        finally:
            arriving.unlink(missing_ok=True)


def ends_within(certificate_file: Path, *, days: int) -> bool:
    """Tells whether a certificate ends within so many days, has ended, or cannot be read.

    Raises:
        ProgramError: openssl is missing.
    """
    end = ("-noout", "-checkend", str(days * _SECONDS_PER_DAY))
    return _run(("x509", "-in", str(certificate_file), *end)).returncode != 0


def _own_host(role: Role, name: str) -> list[str]:
    """The scheduler looks for a node's name among its host names, as before there were roles."""
    return [name] if role is Role.NODE and _HOST.fullmatch(name) else []


def _host_names(hosts: Sequence[str]) -> list[str]:
    if len(hosts) > HOSTS_MAX:
        raise InputError(f"{len(hosts)} hosts are too many", remedy=f"name {HOSTS_MAX} at most with --host")
    return [_host_name(host) for host in dict.fromkeys(hosts)]


def _host_name(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host.strip('[]'))}"
    except ValueError:
        if _HOST.fullmatch(host):
            return f"DNS:{host}"
    raise InputError(f"{host!r} is neither a host nor an IP address", remedy="e.g. --host scheduler.example")


def _openssl(*arguments: str) -> str:
    done = _run(arguments)
    if done.returncode != 0:
        lines = [line for line in done.stderr.strip().splitlines() if "error" in line.lower()]
        raise ProgramError(f"openssl {arguments[0]} failed: {(lines or ['without a reason'])[0][:300]}")
    return done.stdout


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    if shutil.which("openssl") is None:
        raise ProgramError("certificates are made with openssl, which is not found here", remedy="install openssl")
    try:
        return subprocess.run(
            ["openssl", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"openssl did not end within {_TIMEOUT_S:g} s") from error


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(f"cannot write to {folder}: {error.strerror}", remedy="name another folder with --folder")
