"""The Helm chart makes of its values what stands in the plain manifests, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.support.cases import for_each
from tests.support.chart import FOLDER, TEMPLATE, default_values, render

Row = dict[str, Any]
EVERYTHING = {"mode": "place", "extender": True, "dynamicResources": True, "hami": True, "serviceMonitor": True}
PLAIN = ("rbac", "engine", "place", "extender", "dynamic-resources", "hami", "service-monitor")


def plain(*names: str) -> list[Row]:
    return [row for name in names for row in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()) if row]


def by_name(rows: list[Row]) -> dict[str, Row]:
    found = {f"{row['kind']}/{row['metadata']['name']}": row for row in rows}
    assert len(found) == len(rows)
    return found


def test_with_everything_it_is_the_plain_manifests() -> None:
    assert by_name(render(default_values() | EVERYTHING)) == by_name(plain(*PLAIN))
    shipped = {path.stem for path in FOLDER.glob("*.yaml") if not path.name.startswith("example-")}
    assert shipped == {*PLAIN, "scheduler-config", "Chart", "values"}


@for_each(
    ("values", "names"),
    [
        ({"mode": "place"}, ("rbac", "engine", "place")),
        ({"mode": "place", "extender": True}, ("rbac", "engine", "place", "extender")),
        ({"mode": "place", "hami": True}, ("rbac", "engine", "place", "hami")),
    ],
)
def test_each_choice_adds_its_own_manifest(values: Row, names: tuple[str, ...]) -> None:
    assert by_name(render(default_values() | values)) == by_name(plain(*names))


def test_as_it_is_shipped_it_only_advises_and_has_no_right_to_place() -> None:
    found = by_name(render(default_values()))
    assert found.keys() == by_name(plain("rbac", "engine")).keys()
    command = found["Deployment/cotenant-engine"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:5] == ["cotenant", "engine", "kubernetes", "--advise", "--scheduler"]


def test_images_and_the_namespace_of_the_monitoring_are_those_that_are_named() -> None:
    text = json.dumps(render(default_values() | EVERYTHING | {"image": "local/c:1", "monitoringNamespace": "watch"}))
    assert text.count('"image": "local/c:1"') == 4
    assert "cotenant-scheduler" not in text
    assert text.count('"kubernetes.io/metadata.name": "watch"') == 1


def test_every_value_has_its_form_and_stands_in_the_template() -> None:
    schema = json.loads((FOLDER / "values.schema.json").read_text())["properties"]
    assert schema.keys() - {"global"} == default_values().keys()
    for name, value in default_values().items():
        assert f".Values.{name}" in TEMPLATE.read_text()
        assert isinstance(value, {"boolean": bool, "string": str}[schema[name].get("type", "string")])


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not here; the renderer of tests/support/chart.py is")
@for_each("values", [{}, EVERYTHING, {"image": "local/c:1", "monitoringNamespace": "watch"}])
def test_helm_renders_the_same_as_the_renderer_of_these_tests(values: Row) -> None:
    flags = [f"--set={name}={json.dumps(value).strip(chr(34))}" for name, value in values.items()]
    command = ["helm", "template", "cotenant", str(FOLDER), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    rows = [row for row in yaml.safe_load_all(done.stdout) if row]
    assert by_name(rows) == by_name(render(default_values() | values))
