"""The table of timm features grows model by model, survives interruption, and joins by name and image size."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from predictor_service.errors import TrainingDataError
from predictor_service.features.graphs.batch_figures import features_at_batch
from predictor_service.importers.timm_features import TimmFeatures
from predictor_service.importers.timm_table import (
    ChildTracer,
    Row,
    WantedModel,
    build_table,
    check_installed,
    read_wanted,
    trace_model,
)
from tests.support.traced_models import trace


class HereTracer:
    """Traces in this process and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[WantedModel] = []

    def __call__(self, wanted: Iterable[WantedModel]) -> Iterator[tuple[WantedModel, Row | str]]:
        for item in wanted:
            self.asked.append(item)
            yield item, trace(item)


def build(folder: Path, *wanted: WantedModel) -> tuple[tuple[int, int], list[WantedModel]]:
    tracer = HereTracer()
    return build_table(wanted, folder, tracer, lambda _: None), tracer.asked


def test_a_second_run_traces_only_what_is_missing(tmp_path: Path) -> None:
    first = (WantedModel("a"), WantedModel("unknown"))
    assert build(tmp_path, *first) == ((1, 1), list(first))
    added, asked = build(tmp_path, *first, WantedModel("b"))
    assert (added, asked) == ((1, 0), [WantedModel("b")])
    assert (tmp_path / "features.csv").read_text().count("\n") == 3


def test_the_default_size_answers_both_ways_of_asking(tmp_path: Path) -> None:
    _, asked = build(tmp_path, WantedModel("a"), WantedModel("a", 224), WantedModel("a", 288), WantedModel("b", 224))
    assert asked == [WantedModel("a"), WantedModel("a", 288), WantedModel("b", 224)]
    assert build(tmp_path, WantedModel("b"))[1] == []


def test_features_are_found_by_name_and_size(tmp_path: Path) -> None:
    build(tmp_path, WantedModel("a"), WantedModel("a", 288))
    features = TimmFeatures.load(tmp_path)
    at_default = features.at_default_size("a.some_weights")
    assert at_default is not None
    assert at_default["input_bytes_per_sample"] == 3 * 224 * 224 * 4
    assert features.default_shape("a") == "3x224x224"
    assert features.at_size("a", 288) != features.at_size("a", 224) == at_default
    assert features.at_size("a", 100) is None
    assert features.at_default_size("nobody") is None


def test_without_a_table_nothing_is_known(tmp_path: Path) -> None:
    assert TimmFeatures.load(tmp_path).at_default_size("resnet50") is None


@pytest.mark.parametrize(("batch", "peak"), [(1, 1050), (2, 1100), (3, 1150), (4, 1200), (100, 6000)])
def test_counted_memory_adds_what_is_held_and_the_peak(tmp_path: Path, batch: int, peak: int) -> None:
    build(tmp_path, WantedModel("a"))
    features = TimmFeatures.load(tmp_path).at_default_size("a")
    assert features is not None
    at_batch = features_at_batch(features, batch, optimizer_slots=2)
    assert at_batch["step_peak_bytes"] == peak
    assert at_batch["counted_memory_bytes"] == 3 * 4000 + 8 + batch * 3 * 224 * 224 * 4 + peak
    assert not [name for name in at_batch if "at_batch" in name]


def test_names_come_from_a_file_or_a_public_set(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("resnet50.a1_in1k\n\nvit_base 384\nresnet50\n")
    assert read_wanted(tmp_path / "names.txt") == [WantedModel("resnet50"), WantedModel("vit_base", 384)]
    (tmp_path / "train_rtx3090.csv.gz").write_bytes(gzip.compress(b"gpu,model,train_img_size\nRTX3090,a,288\n"))
    (tmp_path / "timm_memory.csv").write_text("model,clean\nb,1\nb,0\n")
    assert read_wanted(tmp_path) == [WantedModel("b"), WantedModel("a", 288)]


def test_a_file_of_names_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("resnet50 large\n")
    with pytest.raises(TrainingDataError, match="write NAME or NAME SIDE on each line"):
        read_wanted(tmp_path / "names.txt")
    with pytest.raises(TrainingDataError, match="No such file"):
        read_wanted(tmp_path / "absent.txt")


def test_a_child_that_hangs_or_dies_costs_only_its_model() -> None:
    tracer = ChildTracer(60, trace)
    names = [item.name for item, result in tracer([WantedModel("a"), WantedModel("b")]) if not isinstance(result, str)]
    assert names == ["a", "b"]
    results = dict(ChildTracer(2, trace)(map(WantedModel, ("slow", "deadly"))))
    assert [result[:16] for result in results.values() if isinstance(result, str)] == ["not traced withi"] * 2


def test_without_timm_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(TrainingDataError, match="timm is not installed here; pip install timm"):
        check_installed()


class _Network(nn.Module):
    def __init__(self, img_size: int = 8) -> None:
        super().__init__()
        self.head = nn.Linear(3 * img_size**2, 10)
        self.default_cfg = {"input_size": (3, 8, 8)}

    def forward(self, images: object) -> object:
        return self.head(nn.functional.pad(images.flatten(1), (0, 0)))  # type: ignore[attr-defined]


class _AnySize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.default_cfg = {"input_size": (3, 8, 8)}

    def forward(self, images: object) -> object:
        return self.stem(images)


def test_models_are_built_for_their_image(monkeypatch: pytest.MonkeyPatch) -> None:
    builders = {"sized": _Network, "any": _AnySize}
    fake = ModuleType("timm")
    fake.__dict__.update(SimpleNamespace(create_model=lambda name, **named: builders[name](**named)).__dict__)
    monkeypatch.setitem(sys.modules, "timm", fake)
    rows = [trace_model(WantedModel(*item)) for item in (("sized",), ("sized", 16), ("any", 16), ("absent",))]
    shapes = [(row["input_shape"], row["is_default"], row["parameters"]) for row in rows if isinstance(row, dict)]
    assert shapes == [("3x8x8", 1, "1930"), ("3x16x16", 0, "7690"), ("3x16x16", 0, "112")]
    assert rows[3] == "KeyError: 'absent'"
