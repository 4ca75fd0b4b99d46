"""A real slurmdbd with a MariaDB of its own, both on loopback, in the folder of a Slurm that a test starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

DAEMONS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr", "sacct")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

_PASSWORD = "of-this-test-alone"
_DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_test
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""


def missing_accounting() -> list[str]:
    """Return what of it is not installed."""
    return [name for name in DAEMONS if shutil.which(name, path=PATH) is None]


def prepare(folder: Path, *, port: int, database_port: int) -> None:
    """Write what both daemons read, and make an empty database."""
    conf = folder / "slurmdbd.conf"
    conf.write_text(_DBD_CONF.format(folder=folder, port=port, database_port=database_port, password=_PASSWORD))
    conf.chmod(0o600)
    grants = f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{_PASSWORD}';\nGRANT ALL ON *.* TO slurm@'127.0.0.1';\n"
    (folder / "grants.sql").write_text(grants)
    making = ["mariadb-install-db", "--no-defaults", f"--datadir={folder}/database", "--user=root", "--skip-test-db"]
    making += ["--auth-root-authentication-method=socket", "--skip-name-resolve"]
    subprocess.run(making, env={**os.environ, "PATH": PATH}, check=True, capture_output=True, timeout=200)


def commands(folder: Path, *, database_port: int) -> Mapping[str, list[str]]:
    """Return the daemons' commands, in the order in which they start."""
    place = [f"--datadir={folder}/database", f"--socket={folder}/database.sock", f"--pid-file={folder}/database.pid"]
    reached = ["--bind-address=127.0.0.1", f"--port={database_port}", "--skip-name-resolve"]
    small = ["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--innodb-lock-wait-timeout=900"]
    database = ["mariadbd", "--no-defaults", "--user=root", *place, *reached, *small]
    return {"mariadbd": [*database, f"--init-file={folder}/grants.sql"], "slurmdbd": ["slurmdbd", "-D"]}
