"""Settings of every program: a frozen record declares each once, and it is a flag, a variable and a key of a TOML file.

Flags win over variables, those over the file, that over defaults. An empty variable counts as not set, unless a
setting means something by being empty.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from cotenant.errors import InputError
from cotenant.nearest_name import did_you_mean
from cotenant.option_types import FiniteRange, Kind, Texts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)
else:
    Record = TypeVar("Record")

_KINDS: Mapping[type, Kind] = {
    bool: click.BOOL, int: click.INT, float: FiniteRange(), str: click.STRING
}  # fmt: skip


def setting(
    default: Any,  # noqa: ANN401
    meaning: str,
    *,
    kind: Kind | None = None,
    flags: Sequence[str] = (),
    metavar: str | None = None,
    may_be_empty: bool = False,
) -> Any:  # noqa: ANN401
    """Declares one setting of a record.

    Args:
        default: Its default value, or a function that returns it.
        meaning: For the help of its flag, as a sentence.
        kind: What it may be; by the type of the default where it is left out.
        flags: Names on the command line; --name-of-the-field where they are left out.
        metavar: What the help calls the value.
        may_be_empty: Whether an empty variable is a value.
    """
    found = {"meaning": meaning, "kind": kind, "flags": tuple(flags), "metavar": metavar, "may_be_empty": may_be_empty}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=found)
    return dataclasses.field(default=default, metadata=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(Generic[Record]):
    """Settings and where each of them came from.

    Attributes:
        origins: Setting name -> "flag", "environment COTENANT_X", the file's path, or "default".
    """

    settings: Record
    origins: Mapping[str, str]

    def is_default(self, name: str) -> bool:
        """Returns whether this setting is unset."""
        return self.origins[name] == "default"


class ProgramSettings(Generic[Record]):
    """The settings of one program.

    Args:
        record: A frozen data class whose fields are all declared by `setting`.
        prefix: Of its variables, e.g. COTENANT_AGENT_.
        check: Raises InputError where values do not go together.
        section: Table of the file that holds the keys, if it is there.
    """

    def __init__(
        self,
        record: type[Record],
        *,
        prefix: str,
        check: Callable[[Record], None] = lambda record: None,
        section: str = "",
    ) -> None:
        self._record = record
        self._prefix = prefix
        self._check = check
        self._section = section
        self._fields = {field.name: field for field in dataclasses.fields(record)}

    def resolve(
        self,
        flags: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
        file: Path | None = None,
        *,
        must_exist: bool = True,
    ) -> Resolved[Record]:
        """Merges the four sources.

        Args:
            flags: Values by name; None = not given.
            environment: Variables; None = those of this process.
            file: TOML; None = none.
            must_exist: Whether a file that is not there is an error.

        Raises:
            InputError: A file that cannot be read, an unknown name in it, or a value that cannot be.
        """
        environment = os.environ if environment is None else environment
        sources = [
            {name: (value, "flag") for name, value in flags.items() if value is not None},
            self._read_environment(environment),
            self._read_file(file, must_exist=must_exist),
        ]
        values: dict[str, object] = {}
        origins = dict.fromkeys(self._fields, "default")
        for name in self._fields:
            for source in sources:
                if name in source:
                    value, origins[name] = source[name]
                    values[name] = self._convert(name, value, origins[name])
                    break
        settings = self._record(**values)
        self._check(settings)
        return Resolved(settings=settings, origins=origins)

    def load(
        self, flags: Mapping[str, object], environment: Mapping[str, str] | None = None, file: Path | None = None
    ) -> Record:
        """Merges the four sources, as `resolve`."""
        return self.resolve(flags, environment, file).settings

    def options(self, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Gives a command flags for some settings and --config, and hands it all settings as `settings`.

        Args:
            names: Settings that are flags of this command; none = all.
        """
        chosen = names or tuple(self._fields)

        def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(command)
            def run(*args: Any, config: Path | None, **kwargs: Any) -> Any:  # noqa: ANN401 (click hands over what was declared)
                flags = {name: kwargs.pop(name) for name in chosen}
                return command(*args, settings=self.load(flags, file=config), **kwargs)

            decorated: Callable[..., Any] = run
            for name in reversed(chosen):
                decorated = self.option(name)(decorated)
            return self._config_option()(decorated)

        return decorate

    def option(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Returns the flag of one setting; None = not given."""
        field = self._fields[name]
        kind, metadata = self._kind(name), field.metadata
        flag = f"--{name.replace('_', '-')}"
        declared = metadata["flags"] or ((f"{flag}/--no-{flag[2:]}",) if kind is click.BOOL else (flag,))
        is_list = isinstance(kind, Texts)
        return click.option(
            *declared,
            name,
            type=kind,
            default=None,
            multiple=is_list,
            callback=_joined if is_list else None,
            metavar=metadata["metavar"],
            help=f"{metadata['meaning']}{_shown_default(field)}",
        )

    def _config_option(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        place = f", under [{self._section}] or at the top" if self._section else ""
        return click.option(
            "--config",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar=f"{self._prefix}CONFIG",
            help=f"TOML file with settings{place}; flags and {self._prefix}* variables win over it.",
        )

    def _kind(self, name: str) -> Kind:
        field = self._fields[name]
        kind: Kind | None = field.metadata["kind"]
        return kind if kind is not None else _KINDS[type(field.default)]

    def _read_environment(self, environment: Mapping[str, str]) -> Mapping[str, tuple[object, str]]:
        """Takes the names that are ours; others with the prefix may belong to a newer version."""
        found: dict[str, tuple[object, str]] = {}
        for name, field in self._fields.items():
            variable = self._prefix + name.upper()
            value = environment.get(variable)
            if value or (value is not None and field.metadata["may_be_empty"]):
                found[name] = value, f"environment {variable}"
        return found

    def _read_file(self, file: Path | None, *, must_exist: bool) -> Mapping[str, tuple[object, str]]:
        if file is None:
            return {}
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, FileNotFoundError) and not must_exist:
                return {}
            raise InputError(f"cannot read {file}: {error}", remedy="correct the file, or name another one") from error
        section = content.get(self._section, content)
        if not isinstance(section, dict):
            raise InputError(
                f"{file}: {self._section} is not a table", remedy=f"write [{self._section}] above the keys"
            )
        for name in section:
            if name not in self._fields:
                raise InputError(f"{file}: unknown setting {name!r}", remedy=did_you_mean(name, list(self._fields)))
        return {name: (self._text(name, value), str(file)) for name, value in section.items()}

    def _text(self, name: str, value: object) -> object:
        """What a variable would hold for a value of the file: one conversion serves both."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list) and isinstance(self._kind(name), Texts):
            return ",".join(map(str, value))
        return value if isinstance(value, list | dict) else str(value)

    def _convert(self, name: str, value: object, origin: str) -> object:
        kind = self._kind(name)
        try:
            if isinstance(value, list | dict):
                return kind.fail(f"{value!r} is not one value.")
            return kind.convert(value, None, None)
        except click.BadParameter as error:
            remedy = f"correct it; it is: {self._fields[name].metadata['meaning'].removesuffix('.')}"
            raise InputError(f"{name} from {origin}: {error.message}", remedy=remedy) from error


def _joined(
    context: click.Context, parameter: click.Parameter, value: tuple[tuple[Any, ...], ...]
) -> tuple[Any, ...] | None:
    """A list that was given several times is one; None = not at all."""
    return tuple(item for part in value for item in part) if value else None


def _shown_default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING or field.default in (None, "", ()):
        return ""
    shown = ("no", "yes")[field.default] if isinstance(field.default, bool) else field.default
    return f"  [default: {shown}]"
