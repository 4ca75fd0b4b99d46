"""A real control plane of Kubernetes in a folder of its own: etcd, API server, controllers, scheduler."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from cotenant.engines.errors import EngineError
from cotenant.engines.kubernetes.access import ClusterAccess
from cotenant.engines.kubernetes.api import ServedApi
from tests.support.daemons import end_process, free_ports

CACHE = Path(os.environ.get("COTENANT_KUBERNETES_CACHE", Path.home() / ".cache" / "cotenant-kubernetes"))
ADMIN_TOKEN = "admin-of-the-test"
WAIT_S = 90.0
_SCHEDULER_CONFIGURATION = "kubescheduler.config.k8s.io/v1beta1"


def binaries() -> Path | None:
    """Return the newest folder that deploy/build_kubernetes.sh made; None = there is none."""
    found = sorted(path.parent for path in CACHE.glob("*/kube-apiserver"))
    return found[-1] if found else None


def missing_parts() -> list[str]:
    """Return what is missing here to start it."""
    missing = [name for name in ("etcd", "openssl") if shutil.which(name) is None]
    return missing + ([] if binaries() else [f"{CACHE}/*/kube-apiserver (deploy/build_kubernetes.sh {CACHE})"])


class ControlPlane:
    """Starts and stops it; use it as a context manager.

    Args:
        folder: Everything lies there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etcd_port, self.peer_port, self.port, *self._other_ports = free_ports(5)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._clients: list[ServedApi] = []

    def __enter__(self) -> ControlPlane:
        self._write()
        try:
            self._start("etcd", self._etcd())
            self.start("kube-apiserver")
            self.wait_ready()
            self.start("kube-controller-manager")
            self.start("kube-scheduler")
        except BaseException:
            self._stop_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_all()

    def api(self, token: str = ADMIN_TOKEN, *, timeout_s: float = 20.0) -> ServedApi:
        """Return a client with a token."""
        authority = (self.folder / "certs" / "apiserver.crt").read_text()
        tls = ssl.create_default_context(cadata=authority)
        made = ServedApi(ClusterAccess(host="127.0.0.1", port=self.port, tls=tls, token=token), timeout_s=timeout_s)
        self._clients.append(made)
        return made

    def write_kubeconfig(self, path: Path, token: str = ADMIN_TOKEN) -> Path:
        """Write one, and return it."""
        server = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": f"{self.folder}/certs/apiserver.crt",
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def start(self, name: str, *flags: str) -> None:
        """Start one of the three programs."""
        commands = {
            "kube-apiserver": self._apiserver,
            "kube-controller-manager": self._controller_manager,
            "kube-scheduler": self._scheduler,
        }
        self._start(name, [*commands[name](), *flags])

    def use_extender(self, address: str) -> None:
        """Let kube-scheduler ask an extender from its next start on, as deploy/kubernetes says."""
        shipped = Path(__file__).parents[2] / "deploy" / "kubernetes" / "scheduler-config.yaml"
        document: dict[str, Any] = yaml.safe_load(shipped.read_text())
        document |= self._scheduler_configuration()
        document["extenders"][0]["urlPrefix"] = f"http://{address}"
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(document))

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End one of them and wait until it is gone."""
        process = self._running.pop(name, None)
        if process is not None:
            end_process(process, number)

    def revive(self) -> None:
        """Start again what has ended by itself, as a kubelet does: controllers give up on a slow API server."""
        for name in [name for name, process in self._running.items() if process.poll() is not None]:
            del self._running[name]
            self.start(name)

    def wait_ready(self) -> None:
        """Wait until the API server answers, with its default roles in place."""

        def is_ready() -> bool:
            if not (self.folder / "certs" / "apiserver.crt").exists():
                return False
            with contextlib.suppress(EngineError):
                self.api().get("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node-problem-detector")
                self.api().get("/api/v1/namespaces/default")
                return True
            return False

        wait_until(is_ready, "the API server is ready")

    def _stop_all(self) -> None:
        for client in self._clients:
            client.close()
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self.stop(name, signal.SIGKILL)

    def _write(self) -> None:
        certs = self.folder / "certs"
        certs.mkdir()
        key = certs / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True, timeout=60)
        command = ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(certs / "sa.pub")]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        (self.folder / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,1,"system:masters"\n')
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(self._scheduler_configuration()))

    def _scheduler_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": _SCHEDULER_CONFIGURATION,
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.folder / "kubeconfig")},
        }

    def _etcd(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        flags = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        return ["etcd", *(f"--{name}={value}" for name, value in flags.items())]

    def _apiserver(self) -> list[str]:
        certs = self.folder / "certs"
        flags = {
            "etcd-servers": f"http://127.0.0.1:{self.etcd_port}",
            "bind-address": "127.0.0.1",
            "secure-port": self.port,
            "insecure-port": 0,
            "cert-dir": certs,
            "service-cluster-ip-range": "10.96.0.0/24",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-signing-key-file": certs / "sa.key",
            "service-account-key-file": certs / "sa.pub",
            "disable-admission-plugins": "ServiceAccount",
        }
        return [self._program("kube-apiserver"), *(f"--{name}={value}" for name, value in flags.items())]

    def _controller_manager(self) -> list[str]:
        self.write_kubeconfig(self.folder / "kubeconfig")
        flags = {
            "kubeconfig": self.folder / "kubeconfig",
            "leader-elect": "false",
            "port": 0,
            "secure-port": self._other_ports[0],
            "bind-address": "127.0.0.1",
            "cert-dir": self.folder / "certs",
            "service-account-private-key-file": self.folder / "certs" / "sa.key",
            # Kubelets of a test may be late on a busy machine.
            "node-monitor-grace-period": "10m",
        }
        return [self._program("kube-controller-manager"), *(f"--{name}={value}" for name, value in flags.items())]

    def _scheduler(self) -> list[str]:
        self.write_kubeconfig(self.folder / "kubeconfig")
        flags = {
            "config": self.folder / "scheduler.yaml",
            "port": 0,
            "secure-port": self._other_ports[1],
            "bind-address": "127.0.0.1",
            "cert-dir": self.folder / "certs",
        }
        return [self._program("kube-scheduler"), *(f"--{name}={value}" for name, value in flags.items())]

    def _program(self, name: str) -> str:
        folder = binaries()
        assert folder is not None, missing_parts()
        return str(folder / name)

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as output:
            self._running[name] = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=self.folder, start_new_session=True
            )


def wait_until(holds: Callable[[], bool], what: str, *, seconds: float = WAIT_S) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: It did not in time.
    """
    end_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not in time: {what}")
        time.sleep(0.2)
