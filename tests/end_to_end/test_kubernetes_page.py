"""The page's way from nothing to the first shared GPU, with kubectl and the manifests as they are shipped."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.control_plane import ControlPlane, missing_parts, wait_until
from tests.support.fake_kubelets import FakeKubelets
from tests.support.fake_kubernetes import node_row
from tests.support.scheduler_process import SchedulerProcess

MISSING = [*missing_parts(), *(["kubectl"] if shutil.which("kubectl") is None else [])]
pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.alone,
    pytest.mark.skipif(bool(MISSING), reason=f"not here: {', '.join(MISSING)}"),
    pytest.mark.timeout(300),
]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy" / "kubernetes" / "example-job.yaml"
COTENANT = str(Path(sys.executable).with_name("cotenant"))
RIGHTS = ["apply", "-f", "deploy/kubernetes/rbac.yaml"]
MORE_RIGHTS = [*RIGHTS, "-f", "deploy/kubernetes/place.yaml"]
GPU = ("--gpu", "gpu*=NVIDIA A10:24GiB")


class Site:
    """A cluster with one bare node called gpu1, as an operator sees it."""

    def __init__(self, plane: ControlPlane, scheduler: str) -> None:
        self.plane = plane
        self._scheduler = scheduler
        self._kubeconfig = plane.write_kubeconfig(plane.folder / "operator.kubeconfig")

    def kubectl(self, *words: str, text: str = "") -> str:
        command = ["kubectl", "--kubeconfig", str(self._kubeconfig), *words]
        return self._run(command, text)

    def cotenant(self, *words: str) -> str:
        kubeconfig = ["--kubeconfig", str(self._engine_kubeconfig()), "--scheduler", self._scheduler]
        return self._run([COTENANT, "engine", "kubernetes", *words, "--once", *kubeconfig, *GPU])

    def page_commands(self, program: str) -> list[list[str]]:
        """Return the commands of the page that use a program, in its order, each by its words."""
        page = (ROOT / "docs" / "kubernetes.md").read_text()
        lines = re.findall(rf"^    {program} (.+)$", page, re.MULTILINE)
        return [line.partition(" #")[0].split() for line in lines]

    def _engine_kubeconfig(self) -> Path:
        """Show what a pod of the controller would show: the token of its account."""
        names = self.kubectl("--namespace", "cotenant", "get", "secrets", "--output", "name").split()
        name = next(name for name in names if "cotenant-engine-token" in name)
        secret = yaml.safe_load(self.kubectl("--namespace", "cotenant", "get", name, "--output", "yaml"))
        token = base64.b64decode(secret["data"]["token"]).decode()
        return self.plane.write_kubeconfig(self.plane.folder / "engine.kubeconfig", token)

    def _run(self, command: list[str], text: str = "") -> str:
        done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def site() -> Iterator[Site]:
    bare = node_row("gpu1", uuids="")
    bare["metadata"]["labels"] = {}
    with (
        tempfile.TemporaryDirectory(prefix="kubernetes") as folder,
        ControlPlane(Path(folder)) as plane,
        FakeKubelets(plane.api(), [bare]),
        SchedulerProcess(plane.folder) as scheduler,
    ):
        yield Site(plane, scheduler.address)


def example(name: str) -> str:
    """Return the shipped example under another name, with the toleration that the page tells of."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"]["name"] = name
    document["spec"]["template"]["spec"]["tolerations"] = [{"key": "cotenant.io/gpus", "value": "placed"}]
    return yaml.safe_dump(document)


def test_the_page_leads_from_nothing_to_a_shared_gpu(site: Site) -> None:
    site.kubectl("apply", "--filename", "-", text=RUNTIME_CLASS)
    for words in site.page_commands("kubectl"):
        if words[0] in ("label", "annotate", "taint") or words in (RIGHTS, MORE_RIGHTS):
            site.kubectl(*words)
    for name in ("first", "second"):
        site.kubectl("apply", "--filename", "-", text=example(name))

    def pods() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = yaml.safe_load(site.kubectl("get", "pods", "--output", "yaml"))["items"]
        return found

    wait_until(lambda: len(pods()) == 2, "the Jobs have made their pods")
    wait_until(lambda: "not-ready" not in site.kubectl("get", "nodes", "--output", "yaml"), "the node is ready")
    assert "would start on gpu1/GPU-" in site.cotenant("--advise")
    assert "would start" in site.kubectl("get", "events", "--field-selector", "reason=CotenantAdvice")
    # Two GPUs and three jobs, so that two of them share.
    site.kubectl("apply", "--filename", "-", text=example("third"))
    wait_until(lambda: len(pods()) == 3, "the third Job has made its pod")
    site.cotenant("--place")
    given = [pod["metadata"]["annotations"]["cotenant.io/gpu"] for pod in pods()]
    assert {pod["spec"]["nodeName"] for pod in pods()} == {"gpu1"}
    assert (len(given), len(set(given))) == (3, 2)


RUNTIME_CLASS = """
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
"""
