"""The manifests for Kubernetes: their commands exist, they fit together, and nothing has more rights than it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cotenant.cli.engine_command import EXTENDER_TIMEOUT_S, engine
from cotenant.engines.kubernetes import enforced_limits, node_choice, pods
from scheduler_service.commands import serve

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
PROGRAMS = ("engine.yaml", "extender.yaml")
Row = dict[str, Any]


def rows(name: str) -> list[Row]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pod_spec(name: str) -> Row:
    found: Row = rows(name)[0]["spec"]["template"]["spec"]
    return found


def containers(name: str) -> dict[str, Row]:
    return {row["name"]: row for row in pod_spec(name)["containers"]}


def called(command: list[str]) -> click.Command:
    """Return what a container's command calls."""
    if command[:2] == ["cotenant", "engine"]:
        return engine.commands[command[2]]
    assert command[:4] == ["python", "-m", "scheduler_service", "serve"]
    return serve.serve


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_flag_of_a_command_exists(name: str) -> None:
    for container in containers(name).values():
        options = (one for one in called(container["command"]).params if isinstance(one, click.Option))
        known = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
        assert {word for word in container["command"] if word.startswith("--")} <= known


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_asks_the_scheduler_that_runs_beside_it(name: str) -> None:
    ours, scheduler = containers(name)["engine" if name == "engine.yaml" else "extender"], containers(name)["scheduler"]
    asked = ours["command"][ours["command"].index("--scheduler") + 1]
    assert asked == scheduler["command"][scheduler["command"].index("--address") + 1]
    assert asked.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_container_has_rights_on_its_node(name: str) -> None:
    assert pod_spec(name)["securityContext"]["runAsNonRoot"]
    for container in containers(name).values():
        closed = container["securityContext"]
        assert not closed["allowPrivilegeEscalation"]
        assert closed["readOnlyRootFilesystem"]
        assert closed["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]


def test_kube_scheduler_asks_the_extender_where_it_listens_and_does_without_it() -> None:
    [config] = rows("scheduler-config.yaml")
    [asked] = config["extenders"]
    command = containers("extender.yaml")["extender"]["command"]
    assert asked["urlPrefix"] == f"http://{command[command.index('--address') + 1]}"
    assert asked["ignorable"]
    # Reading the cluster takes two or three questions, deciding two; the first that is not answered ends it.
    assert float(asked["httpTimeout"].removesuffix("s")) > 2 * EXTENDER_TIMEOUT_S


def test_no_role_reads_secrets_or_changes_what_a_pod_runs() -> None:
    rules = [rule for row in rows("rbac.yaml") if row["kind"] == "ClusterRole" for rule in row["rules"]]
    granted = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert granted == {
        *((resource, verb) for resource in rules[0]["resources"] for verb in ("get", "list")),
        ("pods/status", "patch"),
        ("events", "create"),
        ("pods/binding", "create"),
        ("pods", "delete"),
    }
    assert rules[0]["resources"] == ["nodes", "pods", "persistentvolumeclaims", "persistentvolumes"]
    bound = {row["roleRef"]["name"] for row in rows("rbac.yaml") if row["kind"] == "ClusterRoleBinding"}
    assert bound == {"cotenant-read", "cotenant-advise"}
    assert [row["roleRef"]["name"] for row in rows("place.yaml")] == ["cotenant-place"]


def test_what_lets_gated_pods_go_may_do_that_and_close_devices_and_no_more() -> None:
    granted = {
        (name, resource, verb)
        for name in ("dynamic-resources.yaml", "hami.yaml")
        for row in rows(name)
        if row["kind"] == "ClusterRole"
        for rule in row["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        ("hami.yaml", "pods", "patch"),
        ("dynamic-resources.yaml", "pods", "patch"),
        ("dynamic-resources.yaml", "resourceslices", "list"),
        *(("dynamic-resources.yaml", "resourceclaims", verb) for verb in ("create", "get", "delete")),
        *(("dynamic-resources.yaml", "devicetaintrules", verb) for verb in ("list", "create", "delete")),
    }


@pytest.mark.parametrize("name", ["example-claim.yaml", "example-hami.yaml"])
def test_a_gated_example_is_one_that_cotenant_places(name: str) -> None:
    [pod] = [row for row in rows(name) if row["kind"] == "Pod"]
    # As the API server completes it: what is limited is asked for.
    asked = pod["spec"]["containers"][0]["resources"]
    asked["requests"] = {**asked["limits"], **asked["requests"]}
    assert pods.tag_of(pod) is not None
    assert pods.is_ours(pod)
    assert node_choice.obstacle_of(pod) == ""
    assert pods.asked_of_plugins(pods.requests_of(pod)) == {}


def test_the_example_with_a_limit_is_one_whose_limit_cotenant_writes() -> None:
    [job] = rows("example-limits.yaml")
    pod = job["spec"]["template"]
    assert pods.is_ours(pod)
    assert node_choice.obstacle_of(pod) == ""
    written = enforced_limits.limits_of(pod, "GPU-8f", 2**30)
    assert written.keys() > pod["metadata"]["annotations"].keys() - {pods.JOB_ANNOTATION}
    assert {name.split(".")[2] for name in written} == {row["name"] for row in pod["spec"]["containers"]}


def test_the_example_takes_its_gpu_over_from_the_annotation_that_placing_writes() -> None:
    [job] = rows("example-job.yaml")
    template = job["spec"]["template"]
    assert template["spec"]["schedulerName"] == pods.SCHEDULER_NAME
    assert pods.JOB_ANNOTATION in template["metadata"]["annotations"]
    variables = {row["name"]: row["valueFrom"]["fieldRef"] for row in template["spec"]["containers"][0]["env"]}
    assert variables == {
        "NVIDIA_VISIBLE_DEVICES": {"fieldPath": f"metadata.annotations['{pods.GPU_ANNOTATION}']"},
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": {"fieldPath": f"metadata.annotations['{pods.MPS_ANNOTATION}']"},
    }
