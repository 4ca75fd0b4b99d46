"""The contract only grows: nothing in protos/baseline.json is renamed, renumbered, retyped or taken away."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.goldens.filled_messages import contract_messages

REPOSITORY = Path(__file__).resolve().parents[1]
BUF = Path(sys.executable).with_name("buf")
BASELINE = REPOSITORY / "protos" / "baseline.json"


def refusal(protos: Path) -> str:
    """Why `make protos` would refuse these files; empty = it takes them."""
    command = [BUF, "breaking", protos, "--against", BASELINE]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
    return f"{done.stdout}{done.stderr}"


@pytest.fixture
def protos(tmp_path: Path) -> Path:
    shutil.copytree(REPOSITORY / "protos", tmp_path / "protos")
    return tmp_path / "protos"


def edit(protos: Path, file: str, old: str, new: str) -> None:
    path = protos / "cotenant" / "v1" / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_the_contract_as_it_is_breaks_no_client() -> None:
    assert refusal(REPOSITORY / "protos") == ""


def test_every_service_and_message_is_frozen() -> None:
    frozen = json.loads(BASELINE.read_text())["file"]
    services = {service["name"] for file in frozen for service in file.get("service", ())}
    sources = "".join(path.read_text() for path in (REPOSITORY / "protos").rglob("*.proto"))
    assert services == set(re.findall(r"^service (\w+)", sources, re.MULTILINE))
    own = [file for file in frozen if file["package"] == "cotenant.v1"]
    messages = {f"cotenant.v1.{one['name']}" for file in own for one in file["messageType"]}
    assert messages == {name for name in contract_messages() if name.count(".") == 2}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("resources.proto", "int64 global_batch_size = 1;", "int64 batch_size = 1;"),
        ("resources.proto", "int64 global_batch_size = 1;", "int64 global_batch_size = 99;"),
        ("resources.proto", "int64 global_batch_size = 1;", "int32 global_batch_size = 1;"),
        ("resources.proto", "  double input_wait_ratio = 5;\n", ""),
        ("models.proto", "  rpc CancelRetraining(CancelRetrainingRequest) returns (CancelRetrainingResponse);\n", ""),
        ("scheduling.proto", "  JOB_PHASE_CANCELLED = 7;\n", ""),
    ],
)
def test_a_rename_a_renumbering_and_a_removal_are_refused(protos: Path, file: str, old: str, new: str) -> None:
    edit(protos, file, old, new)
    assert f"cotenant/v1/{file}" in refusal(protos)


def test_another_field_is_welcome(protos: Path) -> None:
    edit(protos, "models.proto", "  string why = 4;\n", "  string why = 4;\n  string who = 5;\n")
    assert refusal(protos) == ""
