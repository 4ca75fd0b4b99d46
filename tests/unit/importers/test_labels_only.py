"""Sets as they are shipped: labels only, figures of graphs joined when read, nothing lost and nothing invented."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cotenant import profile_text
from cotenant.profile_schema import ProfileSchemaError, SoloRow, read_rows, write_rows
from predictor_service.commands.datasets import datasets
from predictor_service.errors import TrainingDataError
from predictor_service.features.graphs.batch_figures import features_at_batch
from predictor_service.importers.catalogue import IMPORTERS
from predictor_service.importers.imported_set import ImportedSet, features_json, job_key, solo_row, write_set
from predictor_service.importers.labels_only import write_labels
from predictor_service.importers.set_cards import ORIGINS, write_card
from predictor_service.importers.timm_features import TimmFeatures
from predictor_service.importers.zoo_features import ZooFeatures
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import read_profiles
from predictor_service.retraining.datasets import hash_datasets, read_dataset
from predictor_service.selection.targets import MEMORY
from predictor_service.settings import default_datasets_dir
from tests.support.shared_data import shared_data

DEVICE = "NVIDIA A100-SXM4-40GB"
PUBLIC = default_datasets_dir() / "public"
LARGE = ("timm_bench", "gpumemnet", "pollux")
"""Many rows, read in `make test-all`; tests of their importers read a few of them in every run."""
SETS = [pytest.param(one, marks=[pytest.mark.endurance] if one in LARGE else []) for one in sorted(IMPORTERS)]
LAYERS = {"parameters": 55.0, "simulated_busy_ms": 0.1 + 0.2}


def row(name: str, graph: dict[str, float] | None, *, optimizer: str = "adam") -> SoloRow:
    return solo_row(
        run_id=name,
        campaign="c",
        device=DEVICE,
        job_key=job_key("set", name, 8),
        architecture=name,
        family=name,
        batch=8,
        optimizer=optimizer,
        memory_peak_bytes=1 << 30,
        memory_context_bytes=0,
        features_json=features_json({"batch_size": 8}, graph),
    )


def rows() -> list[SoloRow]:
    zoo, timm = ZooFeatures.load().of("resnet50"), TimmFeatures.load().at_default_size("resnet50")
    assert zoo is not None
    assert timm is not None
    return [
        row("resnet50", dict(zoo)),
        row("timm", dict(timm), optimizer="unstated"),
        row("timm_at_batch", features_at_batch(timm, 8, optimizer_slots=2)),
        row("generated", LAYERS),
        row("unknown", None),
    ]


def test_every_figure_comes_back_when_the_rows_are_read(tmp_path: Path) -> None:
    imported = ImportedSet(solo=rows())
    write_set(tmp_path / "whole", imported)
    write_labels(tmp_path / "labels", imported)
    whole, labels = (
        read_learning_task(read_profiles(tmp_path / name), MEMORY, DEVICE).learning_task for name in ("whole", "labels")
    )
    assert [dict(job.graph) for job in labels.jobs] == [dict(job.graph) for job in whole.jobs]
    assert [dict(job.raw) for job in labels.jobs] == [dict(job.raw) for job in whole.jobs]
    assert [dict(job.labels) for job in labels.jobs] == [dict(job.labels) for job in whole.jobs]
    assert dict(labels.jobs[3].graph) == LAYERS


def test_rows_hold_labels_and_a_reference_only(tmp_path: Path) -> None:
    write_labels(tmp_path, ImportedSet(solo=rows()))
    features = [json.loads(each.features_json or "") for each in read_rows(tmp_path / "solo.csv.gz", SoloRow)]
    assert [each.get("graph_of") for each in features[:2]] == ["zoo_features/resnet50", features[2]["graph_of"]]
    assert features[2]["graph_of"].startswith("timm_features/resnet50/3x")
    assert [name for each in features for name in each if name.startswith("graph.")] == []


def test_a_reference_to_nothing_is_refused_with_its_run(tmp_path: Path) -> None:
    for reference in ("zoo_features/no_such_network", "../../etc/passwd", "7"):
        bad = dataclasses.replace(row("r", None), features_json=json.dumps({"graph_of": reference}))
        write_set(tmp_path, ImportedSet(solo=[bad]))
        for read in (read_profiles, read_dataset):
            with pytest.raises(TrainingDataError, match=r"run r: graph_of .* names no line of timm_features"):
                read(tmp_path)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("k,nan\n", "parameters: nan is not finite"),
        ("k,many\n", "parameters: 'many' is not a number"),
        ("k,1\nk,1\n", "line 3: names a line again"),
        ("k,1,2\n", "has other cells"),
    ],
)
def test_a_bad_table_of_figures_is_refused_with_its_place(tmp_path: Path, cells: str, message: str) -> None:
    write_set(tmp_path, ImportedSet(solo=rows()[-1:]))
    (tmp_path / "graph_features.csv").write_text(f"job_key,parameters\n{cells}")
    with pytest.raises(TrainingDataError, match=message):
        read_profiles(tmp_path)


def test_equal_rows_are_equal_bytes_and_a_changed_figure_another_hash(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_labels(tmp_path / name / "set", ImportedSet(solo=rows()))
    assert {path.name: path.read_bytes() for path in (tmp_path / "a" / "set").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "b" / "set").iterdir()
    }
    changed = [*rows()[:3], row("generated", {**LAYERS, "parameters": 56.0})]
    write_labels(tmp_path / "b" / "set", ImportedSet(solo=changed))
    assert hash_datasets(tmp_path / "a") != hash_datasets(tmp_path / "b")


def test_a_damaged_or_endless_compressed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "solo.csv.gz"
    write_rows(path, rows(), SoloRow)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(ProfileSchemaError, match="is not a whole gzip file"):
        read_rows(path, SoloRow)
    path.write_bytes(b"solo")
    with pytest.raises(ProfileSchemaError, match="is not a whole gzip file"):
        read_rows(path, SoloRow)
    monkeypatch.setattr(profile_text, "TEXT_BYTES_MAX", 1000)
    path.write_bytes(gzip.compress(bytes(1001)))
    with pytest.raises(ProfileSchemaError, match="unpacks to more than 1,000 bytes"):
        read_rows(path, SoloRow)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("table.csv", bytes(11), "has more than 10 bytes"),
        ("table.csv.gz", gzip.compress(bytes(11)), "unpacks to more than 10 bytes"),
        ("table.csv.gz", b"table", "is not a whole gzip file"),
        ("table.csv", b"\xff\xfe", "is not UTF-8"),
    ],
    ids=["long", "long when unpacked", "not packed", "not text"],
)
def test_a_text_is_refused_by_what_is_wrong_with_it(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(profile_text.TextError, match=reason):
        profile_text.read_text(tmp_path / name, bytes_max=10)


def test_the_mark_that_spreadsheets_write_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"\xef\xbb\xbfa,b")
    assert profile_text.read_text(tmp_path / "table.csv", bytes_max=10) == "a,b"


def test_the_command_writes_the_form_that_is_shipped(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    (source / "LICENSE-upstream.txt").write_text("MIT License")
    (source / "loss.csv").write_text("run,step,split,loss,train_time_s\nr,1,val,3.5,2\n")
    arguments = ["import", "nanogpt_curves", str(source), "-o", str(folder), "--labels-only"]
    assert CliRunner().invoke(datasets, arguments, catch_exceptions=False).exit_code == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {"solo.csv.gz", "pairs.csv.gz", "loss_curves.csv.gz", "LICENSE", "README.md"}
    assert (folder / "LICENSE").read_text() == "MIT License"
    assert "modded-nanogpt @ f411b3d346aa" in (folder / "README.md").read_text()
    run = CliRunner().invoke(datasets, ["check", str(folder)], catch_exceptions=False)
    assert run.stdout.splitlines() == ["solo: 0 rows", "pairs: 0 rows", "loss_curves: 1 rows"]


def test_a_readme_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_text("run,step,split,loss,train_time_s\nr,1,val,3.5,2\n")
    (tmp_path / "README.md").write_text("# My project")
    arguments = ["import", "nanogpt_curves", str(tmp_path), "-o", str(tmp_path), "--labels-only"]
    with pytest.raises(TrainingDataError, match="is no card of nanogpt_curves and would be lost"):
        CliRunner().invoke(datasets, arguments, catch_exceptions=False)
    assert (tmp_path / "README.md").read_text() == "# My project"
    assert not (tmp_path / "solo.csv.gz").exists()


def test_rows_that_are_there_plain_and_compressed_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path, ImportedSet(solo=rows()))
    write_labels(tmp_path, ImportedSet(solo=rows()))
    for read in (read_profiles, read_dataset):
        with pytest.raises(TrainingDataError, match=r"has both solo\.csv and solo\.csv\.gz"):
            read(tmp_path)


def test_every_set_that_can_be_imported_is_shipped_with_card_and_licence() -> None:
    assert {path.name for path in PUBLIC.iterdir()} == set(IMPORTERS) == set(ORIGINS)
    for name, importer in IMPORTERS.items():
        card = (PUBLIC / name / "README.md").read_text()
        assert f"Licence: {importer.licence}" in card
        assert (PUBLIC / name / "LICENSE").is_file() == (name != "gpumemnet")


@pytest.mark.parametrize("name", SETS)
def test_what_is_shipped_is_what_importing_writes(tmp_path: Path, name: str) -> None:
    source = shared_data(name)
    imported = IMPORTERS[name].read(source)
    write_labels(tmp_path, imported)
    write_card(tmp_path, name, source, imported)
    shipped = sorted(path.name for path in (PUBLIC / name).iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == shipped
    for file in shipped:
        assert content(tmp_path / file) == content(PUBLIC / name / file)


def content(path: Path) -> bytes:
    """What a file holds: libraries of other machines pack the same text into other bytes."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
