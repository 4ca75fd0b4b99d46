"""The compose files, the images and the example settings agree with each other."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cotenant_agent.commands import run_agent
from predictor_service.commands.program import serve_command
from scheduler_service.commands.serve import serve
from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
GPU = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())
METRICS = yaml.safe_load((ROOT / "docker-compose.metrics.yml").read_text())
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def flags_of(command: click.Command) -> set[str]:
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


FLAGS = {
    ("predictor", "serve"): flags_of(serve_command),
    ("scheduler", "serve"): flags_of(serve),
    ("agent", "run"): flags_of(run_agent),
}


def variables_with_defaults(text: str) -> dict[str, str]:
    """Return the ${NAME:-default} of a compose file."""
    return dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))


def copied_sources() -> list[str]:
    """Return what the Dockerfile copies from the repository."""
    copies = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    return sorted({source.rstrip("/") for sources in copies for source in sources if "--from" not in sources[0]})


def test_the_files_name_no_version_so_that_both_generations_of_compose_take_them() -> None:
    assert "version" not in COMPOSE
    assert "version" not in GPU
    assert "version" not in METRICS


@pytest.mark.parametrize("name", SERVICES)
def test_every_program_is_bounded_and_has_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["mem_limit"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert "privileged" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_every_published_port_is_on_the_loopback_address(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_every_program_keeps_its_state_in_a_named_volume(name: str) -> None:
    volume = SERVICES[name]["volumes"][0]
    source, _, target = volume.partition(":")
    assert source in COMPOSE["volumes"]
    command = SERVICES[name]["command"]
    assert command[command.index("--state-dir") + 1].startswith(f"{target}/")


@pytest.mark.parametrize("name", SERVICES)
def test_a_program_waits_only_for_programs_that_report_their_health(name: str) -> None:
    for other, condition in SERVICES[name].get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other]


@pytest.mark.parametrize("name", SERVICES)
def test_every_build_target_is_a_stage_of_the_dockerfile_and_ends_as_an_unprivileged_user(name: str) -> None:
    stage = re.search(rf"^FROM \S+ AS {SERVICES[name]['build']['target']}\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.M | re.S)
    assert stage is not None
    assert "USER cotenant\n" in stage.group(1)


def test_a_builder_that_makes_every_stage_above_installs_for_no_program_what_only_a_later_one_needs() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.M)
    programs = [stage for stage in stages if stage in SERVICES]
    assert programs[-1] == "agent", "torch is by far the largest"
    for program in programs:
        assert stages[stages.index(program) - 1] == f"{program}-environment"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, service["command"]) for name, service in SERVICES.items()),
        ("agent", GPU["services"]["agent"]["command"]),
    ],
)
def test_every_flag_of_a_command_is_one_that_the_program_has(name: str, command: list[str]) -> None:
    verb, *words = command
    assert {word for word in words if word.startswith("--")} <= FLAGS[name.removesuffix("-2"), verb]


def test_the_health_checks_ask_where_the_programs_serve() -> None:
    for name, service in SERVICES.items():
        kind, *words = service["healthcheck"]["test"]
        command = service["command"]
        reported = command[command.index("--ready-file" if name.startswith("agent") else "--address") + 1]
        assert kind == "CMD"
        assert words[-1] == reported.replace("0.0.0.0", "127.0.0.1")


def test_the_gpu_file_changes_the_agent_only_and_asks_for_devices() -> None:
    assert set(GPU["services"]) == {"agent"}
    agent = GPU["services"]["agent"]
    assert "--nvml" in agent["command"]
    assert "--standin-cores" not in agent["command"]
    assert agent["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"
    assert agent["image"] != SERVICES["agent"]["image"]


@pytest.mark.parametrize("files", [(COMPOSE,), (COMPOSE, GPU)], ids=["cores", "gpus"])
def test_jobs_see_the_users_own_folder_and_may_run_what_lies_there(files: tuple[dict[str, Any], ...]) -> None:
    agent = {name: value for file in files for name, value in file["services"]["agent"].items()}
    [folder] = [volume for volume in SERVICES["agent"]["volumes"] if volume.endswith(":/jobs:${JOBS_ACCESS:-ro}")]
    assert folder.startswith("${JOBS_FOLDER:-")
    command = agent["command"]
    assert "/jobs" in [command[place + 1] for place, word in enumerate(command) if word == "--allow-directory"]


def test_a_second_agent_comes_on_request_only_and_is_a_node_of_its_own() -> None:
    first, second = SERVICES["agent"], SERVICES["agent-2"]
    assert second["profiles"] == ["two-agents"]
    assert "profiles" not in first
    assert second["volumes"][0] != first["volumes"][0]
    assert second["volumes"][1:] == first["volumes"][1:]
    differs = {one for one, other in zip(first["command"], second["command"], strict=True) if one != other}
    assert differs == {"${NODE_ID:-compose-node}", "${STANDIN_CORES:-0}"}


def test_metrics_are_published_on_request_only_and_on_the_port_that_each_program_listens_on() -> None:
    for name, service in SERVICES.items():
        command = service["command"]
        listened = command[command.index("--metrics-address") + 1].rpartition(":")[2]
        [published] = METRICS["services"][name]["ports"]
        assert published.startswith("127.0.0.1:$")
        assert published.endswith(f":{listened}")
        assert not any(port.endswith(f":{listened}") for port in service.get("ports", []))


def test_a_torch_without_cuda_is_the_default_and_the_gpu_file_takes_any() -> None:
    assert SERVICES["agent"]["build"]["args"]["TORCH_BUILD"] == "${TORCH_BUILD:-cpu}"
    assert GPU["services"]["agent"]["build"]["args"]["TORCH_BUILD"] == "any"


def test_the_example_settings_show_every_variable_with_its_default() -> None:
    used: dict[str, str] = {}
    for name in ("docker-compose.yml", "docker-compose.gpu.yml", "docker-compose.metrics.yml"):
        used |= variables_with_defaults((ROOT / name).read_text())
    example = (ROOT / ".env.example").read_text()
    shown = dict(line.split("=", 1) for line in example.splitlines() if line and not line.startswith("#"))
    assert shown == used


@for_each("source", copied_sources())
def test_everything_that_the_images_copy_exists_and_reaches_the_build(source: str) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert (ROOT / source).exists()
    assert any(fnmatch.fnmatch(source, pattern) for pattern in kept)


def test_workers_of_data_loaders_have_more_shared_memory_than_docker_gives_by_itself() -> None:
    for name in ("agent", "agent-2"):
        [(_, size)] = variables_with_defaults(SERVICES[name]["shm_size"]).items()
        assert size == "1g", "Docker's own 64 MB end a job with a bus error"
