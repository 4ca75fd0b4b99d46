"""`cotenant up` keeps other accounts out, and the command line of its own finds the way in."""

from __future__ import annotations

import pwd
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.access.local_access import prepare_local_access, private_socket
from cotenant.access.server_rules import SOCKET_PATH_BYTES_MAX, account_name, bind_private_socket
from cotenant.access.tokens import read_token, read_token_list
from cotenant.cli.settings import resolve_settings
from cotenant.errors import InputError
from cotenant_agent.progress_reading.progress import bind_anywhere

ADDRESS = "127.0.0.1:7071"


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield


def test_what_it_makes_is_private_whatever_was_there_and_every_start_has_new_tokens(tmp_path: Path) -> None:
    (tmp_path / "access").mkdir(mode=0o755)
    access = prepare_local_access(tmp_path, ["local"])
    first = read_token(access.token_file("operator"))
    assert {path.stat().st_mode & 0o777 for path in access.folder.iterdir()} == {0o600}
    assert access.folder.stat().st_mode & 0o777 == 0o700
    tokens = read_token_list(prepare_local_access(tmp_path, ["local"]).callers_file)
    assert tokens.find(first) is None
    assert {(entry.role, entry.name) for entry in tokens.entries} >= {("scheduler", "scheduler"), ("node", "local")}


def test_the_command_line_takes_the_socket_of_the_address_that_is_configured(tmp_path: Path) -> None:
    access = prepare_local_access(tmp_path, [])
    access.announce({"scheduler": ADDRESS})
    settings = resolve_settings({}, {"COTENANT_STATE_DIR": str(tmp_path)}, tmp_path / "none.toml").settings
    assert settings.channel_options(ADDRESS).address == ADDRESS
    with listening(access.socket("scheduler")):
        assert settings.channel_options(ADDRESS).address == f"unix:{access.socket('scheduler')}"
        assert settings.channel_options("127.0.0.1:7072").address == "127.0.0.1:7072"
    assert settings.channel_options(ADDRESS).address == ADDRESS
    access.withdraw()
    assert not access.socket("scheduler").exists()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"127.0.0.1:7071": 7}', '{"127.0.0.1:7071": "/etc/passwd"}', "\0" * 99]
)
def test_a_damaged_note_leads_nowhere(tmp_path: Path, content: str) -> None:
    (prepare_local_access(tmp_path, []).folder / "addresses.json").write_text(content)
    assert private_socket(tmp_path, ADDRESS) == ""


def test_a_deep_state_has_its_sockets_in_a_short_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    access = prepare_local_access(deep, [])
    assert len(str(access.socket("predictor"))) <= SOCKET_PATH_BYTES_MAX
    assert access.sockets.stat().st_mode & 0o777 == 0o700
    assert access.folder == deep / "access"
    access.withdraw()
    assert not access.sockets.exists()


def test_a_socket_folder_that_somebody_has_put_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    short = prepare_local_access(deep, []).sockets
    short.rmdir()
    short.symlink_to(tmp_path)
    with pytest.raises(InputError, match="another account"):
        prepare_local_access(deep, [])


def test_a_server_listens_in_a_private_folder_only_and_takes_no_socket_from_a_living_one(tmp_path: Path) -> None:
    def bind(address: str) -> int:
        path = Path(address.removeprefix("unix:"))
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            bind_anywhere(server, path)
        return 1

    tmp_path.chmod(0o755)
    with pytest.raises(InputError, match="other users can reach"):
        bind_private_socket(tmp_path / "s", bind)
    tmp_path.chmod(0o700)
    bind_private_socket(tmp_path / "s", bind)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    (tmp_path / "s").unlink()
    with listening(tmp_path / "s"), pytest.raises(InputError, match="another program answers"):
        bind_private_socket(tmp_path / "s", bind)
    with pytest.raises(InputError, match="too long"):
        bind_private_socket(tmp_path / ("x" * 120), bind)


@pytest.mark.parametrize(
    ("stated", "name"), [("alice", "alice"), ("DOMAIN\\al ice", "DOMAIN_al_ice"), ("x" * 99, "x" * 63), ("", "user-7")]
)
def test_an_account_has_a_name_that_jobs_may_have_as_their_owner(
    stated: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = pwd.struct_passwd((stated, "x", 7, 7, "", "/", "/bin/sh"))
    monkeypatch.setattr("pwd.getpwuid", lambda user_id: account)
    assert account_name(7) == name
