"""Settings of the command: flags > COTENANT_* > file > defaults, each with its origin."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from cotenant.client import ChannelOptions
from cotenant.client_errors import InputError
from cotenant.local_state import VARIABLE, local_state_dir
from cotenant.nearest_name import did_you_mean

ENVIRONMENT_PREFIX = "COTENANT_"
TIMEOUT_MIN_S, TIMEOUT_MAX_S = 0.1, 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every verb needs to know.

    Attributes:
        scheduler: Address of the scheduler, host:port.
        predictor: Address of the predictor, host:port.
        timeout_s: Deadline of one question to a service, seconds.
        device: Device type that predictions are for unless --device says otherwise.
        output: Output format unless -o says otherwise.
        tls_ca_file: Certificate authority of the services; empty = plain text.
        tls_certificate_file: Own certificate.
        tls_key_file: Key of the own certificate.
        state_dir: Where `cotenant up` keeps the data of its services; empty = the usual folder.
    """

    scheduler: str = "127.0.0.1:7071"
    predictor: str = "127.0.0.1:7070"
    timeout_s: float = 15.0
    device: str = "cpu-standin"
    output: str = "table"
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    state_dir: str = ""

    def channel_options(self, address: str) -> ChannelOptions:
        """Returns how to reach a service at `address`."""
        return ChannelOptions(
            address=address,
            tls_ca_file=_optional_path(self.tls_ca_file),
            tls_certificate_file=_optional_path(self.tls_certificate_file),
            tls_key_file=_optional_path(self.tls_key_file),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSettings:
    """Settings and where each of them came from.

    Attributes:
        origins: Setting name -> "flag", "environment COTENANT_X", the file's path, or "default".
    """

    settings: Settings
    origins: Mapping[str, str]

    def is_default(self, name: str) -> bool:
        """Tells whether nobody has set this setting."""
        return self.origins[name] == "default"


def config_file_path(environment: Mapping[str, str]) -> Path:
    """Returns where the user's file lies: $XDG_CONFIG_HOME/cotenant/config.toml."""
    home = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".config")
    return Path(home) / "cotenant" / "config.toml"


def state_folder(settings: Settings) -> Path:
    """Returns where `cotenant up` keeps its data, and where every other verb looks for it."""
    return Path(settings.state_dir).expanduser() if settings.state_dir else local_state_dir(os.environ)


def point_at_state() -> None:
    """Tells the programs that this process starts, or becomes, where `cotenant up` keeps its data.

    Raises:
        InputError: The configuration file is wrong.
    """
    os.environ[VARIABLE] = str(state_folder(resolve_settings({}).settings))


def resolve_settings(
    flags: Mapping[str, object], environment: Mapping[str, str] | None = None, file: Path | None = None
) -> ResolvedSettings:
    """Merges the four sources.

    Args:
        flags: Setting name -> value; None = flag not given.
        environment: Environment variables; None = those of this process.
        file: Configuration file; None = the user's.

    Raises:
        InputError: A file that cannot be read, an unknown setting in it, or a value of the wrong type.
    """
    environment = os.environ if environment is None else environment
    path = config_file_path(environment) if file is None else file
    from_file = _read_file(path)
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for setting in fields(Settings):
        variable = ENVIRONMENT_PREFIX + setting.name.upper()
        if flags.get(setting.name) is not None:
            value, origin = flags[setting.name], "flag"
        elif environment.get(variable):
            value, origin = environment[variable], f"environment {variable}"
        elif setting.name in from_file:
            value, origin = from_file[setting.name], str(path)
        else:
            value, origin = setting.default, "default"
        values[setting.name] = _convert(setting.name, value, type(setting.default), origin)
        origins[setting.name] = origin
    return ResolvedSettings(settings=Settings(**values), origins=origins)  # type: ignore[arg-type]


def _read_file(path: Path) -> Mapping[str, object]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}", remedy="correct the file or remove it") from error
    valid = [setting.name for setting in fields(Settings)]
    for name in content:
        if name not in valid:
            raise InputError(f"{path}: unknown setting {name!r}", remedy=did_you_mean(name, valid))
    return content


def _convert(name: str, value: object, kind: type, origin: str) -> object:
    if kind is float:
        try:
            number = float(str(value))
        except ValueError as error:
            raise InputError(f"{name} from {origin} is not a number: {value!r}", remedy="e.g. 15") from error
        if not TIMEOUT_MIN_S <= number <= TIMEOUT_MAX_S:
            remedy = f"from {TIMEOUT_MIN_S:g} to {TIMEOUT_MAX_S:g}"
            raise InputError(f"{name} from {origin} is out of range: {value!r}", remedy=remedy)
        return number
    if not isinstance(value, str):
        raise InputError(f"{name} from {origin} must be text, not {value!r}", remedy="put it in quotes")
    return value


def _optional_path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
