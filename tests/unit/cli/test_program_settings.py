"""A setting is declared once; odd values of each source are refused by name, or mean what the help says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from cotenant.client_errors import InputError
from cotenant.option_types import Integers, OptionalFile, Texts
from cotenant.program_settings import ProgramSettings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    metrics: str = setting("127.0.0.1:1", "Where; empty = none.", may_be_empty=True)
    name: str = setting("fallback", "A name.")
    count: int = setting(1, "A count.", kind=click.IntRange(1))
    loud: bool = setting(False, "Loud.")
    file: Path | None = setting(None, "A file.", kind=OptionalFile())
    cores: tuple[int, ...] = setting((), "Cores.", kind=Integers())
    words: tuple[str, ...] = setting((), "Words.", kind=Texts())


SETTINGS = ProgramSettings(Settings, prefix="TEST_", section="part")


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text)
    return file


def test_an_empty_variable_counts_as_not_set_unless_the_setting_means_something_by_it() -> None:
    found = SETTINGS.resolve({}, {"TEST_METRICS": "", "TEST_NAME": "", "TEST_COUNT": "", "TEST_LOUD": ""})
    assert (found.settings.metrics, found.settings.name, found.settings.count) == ("", "fallback", 1)
    assert found.origins["metrics"] == "environment TEST_METRICS"
    assert found.is_default("name")


def test_lists_are_written_with_commas_or_as_lists(tmp_path: Path) -> None:
    from_variables = SETTINGS.load({}, {"TEST_CORES": "0, 1", "TEST_WORDS": "a,,b "})
    assert (from_variables.cores, from_variables.words) == ((0, 1), ("a", "b"))
    from_file = SETTINGS.load({}, {}, written(tmp_path, 'cores = [0, 1]\nwords = ["a", "b"]\nfile = ""\nloud = true\n'))
    assert (from_file.cores, from_file.words, from_file.file, from_file.loud) == ((0, 1), ("a", "b"), None, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("count = true", "count from .*not a valid integer"),
        ("count = 1.5", "count from .*not a valid integer"),
        ("count = 0", "count from .*not in the range"),
        ("name = ['a']", "name from .*not one value"),
        ("name = {a = 1}", "name from .*not one value"),
        ("loud = 2", "loud from .*not a valid boolean"),
        ("cores = ['x']", "cores from .*not a valid integer"),
        ("cores = [-1]", "cores from .*not in the range"),
        ("part = 1", "part is not a table"),
        ("[part]\nnames = 'x'", "unknown setting 'names'"),
    ],
)
def test_a_value_of_the_file_that_cannot_be_is_named_with_its_file(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as refused:
        SETTINGS.load({}, {}, written(tmp_path, text))
    assert "settings.toml" in refused.value.message
    assert refused.value.remedy


def test_a_folder_and_a_file_that_is_not_there_are_refused_unless_it_need_not_be(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(InputError, match="cannot read"):
            SETTINGS.load({}, {}, place)
    assert SETTINGS.resolve({}, {}, tmp_path / "none.toml", must_exist=False).settings == Settings()
