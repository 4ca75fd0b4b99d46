"""Flags before environment before file before defaults, each with its origin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotenant.cli.settings import resolve_settings
from cotenant.client_errors import InputError
from cotenant.local_state import local_state_dir
from tests.support.cases import for_each
from tests.support.cli_cluster import CommandLine


def write_config(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_each_source_wins_over_the_next(tmp_path: Path) -> None:
    file = write_config(tmp_path, 'scheduler = "file:1"\npredictor = "file:2"\ndevice = "NVIDIA H200"\n')
    environment = {"COTENANT_SCHEDULER": "env:1", "COTENANT_PREDICTOR": "env:2"}
    resolved = resolve_settings({"scheduler": "flag:1"}, environment, file)
    assert resolved.settings.scheduler == "flag:1"
    assert resolved.settings.predictor == "env:2"
    assert resolved.settings.device == "NVIDIA H200"
    assert resolved.settings.timeout_s == 15.0
    assert [resolved.origins[name] for name in ("scheduler", "predictor", "device", "timeout_s")] == [
        "flag", "environment COTENANT_PREDICTOR", str(file), "default",
    ]  # fmt: skip


def test_a_misspelt_setting_is_refused_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        resolve_settings({}, {}, write_config(tmp_path, 'schedular = "x:1"\n'))
    assert caught.value.remedy == "did you mean 'scheduler'?"


@pytest.mark.parametrize("text", ["scheduler = [1]\n", "timeout_s = 'soon'\n", "timeout_s = nan\n", "not toml"])
def test_a_value_of_the_wrong_kind_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        resolve_settings({}, {}, write_config(tmp_path, text))


@for_each("seconds", ["nan", "inf", "-1", "0", "1e308"])
def test_a_deadline_that_is_none_is_refused(seconds: str) -> None:
    with pytest.raises(InputError, match="timeout_s from environment COTENANT_TIMEOUT_S"):
        resolve_settings({}, {"COTENANT_TIMEOUT_S": seconds})


def test_all_programs_of_a_machine_keep_their_state_below_one_folder() -> None:
    assert local_state_dir({"HOME": "/home/a"}) == Path("/home/a/.local/state/cotenant/local")
    assert local_state_dir({"HOME": "/home/a", "XDG_STATE_HOME": "/state"}) == Path("/state/cotenant/local")
    assert local_state_dir({"COTENANT_STATE_DIR": "/kept", "XDG_STATE_HOME": "/state"}) == Path("/kept")


@pytest.mark.parametrize("address", ["", "localhost", "no such host:7071", "127.0.0.1:"])
def test_what_is_no_address_is_refused_before_it_is_dialled(address: str, cotenant: CommandLine) -> None:
    outcome = cotenant("ps", "--scheduler", address)
    assert (outcome.code, outcome.out) == (2, "")
    assert "write HOST:PORT" in outcome.err


def test_the_view_shows_where_a_value_came_from(
    cotenant: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COTENANT_PREDICTOR", "host:7")
    monkeypatch.setenv("COTENANT_TLS_CA_FILE", str(tmp_path / "ca.pem"))
    settings = json.loads(cotenant("config", "view", "-o", "json").out)["settings"]
    assert settings["predictor"] == {"value": "host:7", "origin": "environment COTENANT_PREDICTOR"}
    assert settings["tls_ca_file"] == {"value": str(tmp_path / "ca.pem"), "origin": "environment COTENANT_TLS_CA_FILE"}
    assert settings["tls_key_file"] == {"value": "", "origin": "default"}
    assert settings["output"]["origin"] == "flag"
