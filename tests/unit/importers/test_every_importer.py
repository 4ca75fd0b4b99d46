"""Every public set becomes a dataset folder that the command line accepts, with the units that its README states."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from cotenant.profile_schema import SoloRow, check_row, read_rows
from predictor_service.commands.datasets import datasets
from predictor_service.errors import TrainingDataError
from predictor_service.importers.catalogue import IMPORTERS, import_set
from predictor_service.importers.imported_set import ImportedSet, job_key, write_set
from predictor_service.importers.timm_features import TimmFeatures
from tests.support.shared_data import shared_data

# Rows alone, of pairs, of curves, as the tables have them.
PUBLISHED = {
    "alnair": (18 + 49, 216, 0),
    "isacpp": (40, 48, 0),
    "miso": (32 + 145, 0, 0),
    "nanogpt_curves": (0, 0, 17216),
    "pollux": (6151, 0, 1672),
    "salus": (99, 0, 0),
    "torchvision_bench": (2612, 0, 0),
}
# Small tables: set, file, columns and one row.
TABLES = {
    "alnair": {
        "solo.csv": {
            "model": "LSTM", "dataset": "IMDB", "batch_size": "32", "gpu_util_pct": "75", "us_per_10_steps": "80000",
        },
        "mps_pairs.csv": {
            "victim_model": "LSTM", "victim_dataset": "IMDB", "victim_batch": "32", "victim_solo_util_pct": "75",
            "victim_solo_us_per_10_steps": "80000", "other_model": "LSTM", "other_dataset": "IMDB", "other_batch": "32",
            "other_solo_util_pct": "75", "victim_packed_us_per_10_steps": "120000", "victim_slowdown": "1.5",
        },
    },
    "isacpp": {
        "pairs.csv": {
            "figure": "4", "gpu": "RTX3090", "victim_model": "VGG19", "other_model": "WideResNet",
            "batch_size_on_axis": "", "victim_slowdown": "1.225", "error_bar": "0.042",
        },
    },
    "miso": {
        "solo_util_memory.csv": {
            "model": "bert", "batch_size": "2", "gpu_util_pct": "69.71", "mem_util_pct": "33.94", "gpu_mem_mib": "6347",
            "power_w": "160.5",
        },
        "mig_slice_iteration_time.csv": {
            "model": "deepspeech2", "batch_size": "2", "mig_compute_slices": "1", "mig_mem_gb": "5",
            "median_iter_s": "1.02", "mean_iter_s": "1.01", "p95_iter_s": "1.6", "n_iters": "305",
            "slowdown_vs_7g": "3.6",
        },
    },
    "nanogpt_curves": {
        "loss.csv": {"run": "run001", "step": "125", "split": "val", "loss": "3.9", "train_time_s": "12.3456"},
    },
    "pollux": {
        "throughput.csv": {
            "app": "bert", "source": "placements", "placement": "22", "n_nodes": "2", "n_gpus": "4", "local_batch": "6",
            "step_time_s": "0.5", "sync_time_s": "0.1", "samples_per_s": "48",
        },
        "validation_curves.csv": {
            "app": "bert", "batch_size": "24", "epoch": "1", "progress": "7387.47", "iteration": "3725",
            "metric": "86.5", "grad_sqr": "8e13", "grad_var": "7e12",
        },
    },
    "salus": {
        "tf_workloads.csv": {
            "model": "vgg11", "batch_size": "25", "run_length": "1min", "wall_s": "67", "peak_gpu_mem_mb": "3709.6",
            "iterations": "565", "s_per_iteration": "0.118688",
        },
    },
    "timm_bench": {
        "train_rtx3090.csv": {
            "gpu": "RTX3090", "precision": "amp", "model": "resnet50.a1_in1k", "train_samples_per_sec": "500",
            "train_step_ms": "512.5", "train_batch_size": "256", "train_img_size": "224", "params_m": "25.56",
            "layout": "nhwc", "fwd_gmacs": "", "fwd_mactivations": "",
        },
    },
    "torchvision_bench": {
        "step_times.csv": {
            "folder": "2080ti(2)", "gpu": "GeForce RTX 2080 Ti", "n_gpus": "2", "precision": "half", "mode": "train",
            "model": "resnet18", "batch_per_gpu": "12", "median_ms": "30", "mean_ms": "31", "std_ms": "1", "n": "50",
        },
    },
}  # fmt: skip


def imported(folder: Path, name: str, **changes: str) -> ImportedSet:
    """Imports the small tables of a set with cells changed."""
    for file, row in TABLES[name].items():
        text = io.StringIO()
        writer = csv.DictWriter(text, list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerow({column: changes.get(column, cell) for column, cell in row.items()})
        (folder / file).write_text(text.getvalue())
    return import_set(name, folder)


def test_alnair_gives_slowdowns_under_mps(tmp_path: Path) -> None:
    found = imported(tmp_path, "alnair")
    assert (found.solo[0].step_ms_mean, found.solo[0].utilization_ratio) == (8.0, 0.75)
    assert (found.pairs[0].slowdown_ratio, found.pairs[0].share_mode) == (0.5, "mps")
    assert found.pairs[0].other_job_keys == (found.solo[0].job_key,)


def test_alnair_flags_its_odd_cell(tmp_path: Path) -> None:
    changes = {"victim_model": "InceptionV3", "other_model": "ResNet-50", "other_batch": "256"}
    assert imported(tmp_path, "alnair", **changes).pairs[0].quality_flags == ("odd_cell",)
    assert imported(tmp_path, "alnair").pairs[0].quality_flags == ()


def test_the_colab_jobs_of_alnair_teach_nothing(tmp_path: Path) -> None:
    header = (
        "id,model,dataset,epochs,batch_size,run_env,gpu_util_range_pct,max_gpu_util_pct,min_gpu_util_pct,"
        "max_gpu_mem_alloc_pct,max_gpu_time_accessing_mem_pct,max_gpu_power_pct,max_cpu_util_pct,max_sys_mem_pct\n"
    )
    (tmp_path / "colab_p100_tf_jobs.csv").write_text(header + "1,MobileNet ,GTSRB,7,8,Standard,1,46,3,50,3,4,9,2\n")
    row = imported(tmp_path, "alnair").solo[1]
    assert (row.status, row.quality_flags) == ("rejected", ("utilization_is_maximum", "memory_preallocated"))
    assert (row.architecture, row.utilization_ratio, row.memory_peak_bytes) == ("MobileNet", 0.46, 8 << 30)


def test_isacpp_publishes_ratios_only_and_no_row_is_learned_from(tmp_path: Path) -> None:
    found = imported(tmp_path, "isacpp")
    pair = found.pairs[0]
    assert (pair.slowdown_ratio, pair.victim_step_ms_mean, pair.status) == (0.225, None, "rejected")
    assert pair.quality_flags == ("ratio_only", "batch_not_published")
    assert {row.job_key for row in found.solo} == {pair.victim_job_key, *pair.other_job_keys}
    assert {row.status for row in found.solo} == {"failed"}
    assert imported(tmp_path, "isacpp", gpu="").pairs[0].device == "isacpp-unnamed-gpu"


def test_miso_names_the_slice_as_its_own_device(tmp_path: Path) -> None:
    whole, part = imported(tmp_path, "miso").solo
    assert (whole.utilization_ratio, whole.dram_activity_ratio) == pytest.approx((0.6971, 0.3394))
    assert whole.memory_peak_bytes == 6347 << 20
    assert part.device == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert (part.step_ms_mean, part.step_ms_p95, part.steps) == (1010.0, 1600.0, 305)
    assert part.quality_flags == ("noisy",)


def test_nanogpt_gives_curves_in_milliseconds(tmp_path: Path) -> None:
    point = imported(tmp_path, "nanogpt_curves").curves[0]
    assert (point.split, point.step, point.loss, point.elapsed_ms) == ("validation", 125, 3.9, 12346)
    assert imported(tmp_path, "nanogpt_curves", train_time_s="").curves[0].elapsed_ms is None


def test_pollux_gives_batches_of_all_devices_and_losses_that_fall(tmp_path: Path) -> None:
    found = imported(tmp_path, "pollux")
    row = found.solo[0]
    assert (row.batch, row.sub_batch, row.gpus, row.nodes) == (24, 6, 4, 2)
    assert (row.step_ms_mean, row.sync_ms_mean) == (500.0, 100.0)
    assert found.curves[0].loss == pytest.approx(0.135)
    assert imported(tmp_path, "pollux", app="yolov3", metric="20").curves[0].loss == 20


def test_salus_flags_runs_that_include_the_start(tmp_path: Path) -> None:
    row = imported(tmp_path, "salus").solo[0]
    assert (row.memory_peak_bytes, row.step_ms_mean) == (3709600000, 118.688)
    assert row.quality_flags == ("device_from_paper", "includes_start_up")
    assert imported(tmp_path, "salus", wall_s="600").solo[0].quality_flags == ("device_from_paper",)


def test_timm_bench_drops_the_tag_of_weights(tmp_path: Path) -> None:
    row = imported(tmp_path, "timm_bench").solo[0]
    assert (row.architecture, row.family, row.precision, row.mode) == ("resnet50", "resnet", "fp16", "train")
    assert (row.device, row.batch, row.input_shape) == ("NVIDIA GeForce RTX 3090", 256, "3x224x224")


def test_timm_bench_joins_no_features_of_another_network(tmp_path: Path) -> None:
    same = imported(tmp_path, "timm_bench").solo[0]
    other = imported(tmp_path, "timm_bench", params_m="15.41").solo[0]
    assert '"graph.parameters":25557032.0' in (same.features_json or "")
    assert "graph." not in (other.features_json or "")
    assert (same.quality_flags, other.quality_flags) == ((), ("features_of_another_network",))


def test_no_two_sizes_of_one_design_have_the_same_features() -> None:
    """By the names of the larger ones of this series timm builds the smallest."""
    names = [f"ig_resnext101_32x{width}d" for width in (8, 16, 32, 48)]
    known = [TimmFeatures.load().at_default_size(name) for name in names]
    assert known[0] is not None
    assert known[1:] == [None] * 3


@pytest.mark.parametrize(
    ("application", "precision", "optimizer", "flags"),
    [
        ("bert", "fp32", "adamw", ()),
        ("imagenet", "fp16", "momentum", ()),
        ("yolov3", "fp16", "momentum", ("image_size_drawn",)),
    ],
)
def test_jobs_of_pollux_run_as_their_scripts_say(
    tmp_path: Path, application: str, precision: str, optimizer: str, flags: tuple[str, ...]
) -> None:
    row = imported(tmp_path, "pollux", app=application, metric="0.8").solo[0]
    assert (row.precision, row.optimizer, row.quality_flags) == (precision, optimizer, flags)


def test_torchvision_bench_keeps_its_two_runs_on_one_gpu_type_apart(tmp_path: Path) -> None:
    row = imported(tmp_path, "torchvision_bench").solo[0]
    assert (row.campaign, row.device) == ("2080ti_2", "NVIDIA GeForce RTX 2080 Ti")
    assert (row.batch, row.gpus, row.precision, row.optimizer) == (24, 2, "fp16", "none")
    inferred = imported(tmp_path, "torchvision_bench", mode="inference").solo[0]
    assert (inferred.mode, inferred.optimizer) == ("infer", "none")


@pytest.mark.parametrize(
    ("name", "column", "cell", "message"),
    [
        ("alnair", "victim_slowdown", "1.6", "column victim_slowdown: 1.6 is not packed / solo time = 1.5"),
        ("alnair", "gpu_util_pct", "101", "column gpu_util_pct: 101 is above 100"),
        ("isacpp", "gpu", "H100", "column gpu: 'H100' is none of"),
        ("miso", "mean_iter_s", "0", "column mean_iter_s: 0 is not above 0"),
        ("nanogpt_curves", "split", "test", "column split: 'test' is none of train, val"),
        ("pollux", "metric", "101", "column metric: 101 is above 100"),
        ("pollux", "app", "gpt", "column app: 'gpt' is none of"),
        ("salus", "batch_size", "-1", "column batch_size: -1 is not at least 0"),
        ("timm_bench", "precision", "int8", "column precision: 'int8' is none of"),
        ("torchvision_bench", "model", "", "column model: is empty"),
    ],
)
def test_a_bad_cell_is_refused_with_its_place(tmp_path: Path, name: str, column: str, cell: str, message: str) -> None:
    with pytest.raises(TrainingDataError, match=f"line 2, {message}"):
        imported(tmp_path, name, **{column: cell})


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_published_row_arrives(tmp_path: Path, name: str) -> None:
    found = import_set(name, shared_data(name))
    assert (len(found.solo), len(found.pairs), len(found.curves)) == PUBLISHED[name]
    write_set(tmp_path, ImportedSet(solo=found.solo[::10], pairs=found.pairs, curves=found.curves[::10]))
    assert not [key for key, count in Counter(row.run_id for row in found.solo).items() if count > 1]


@pytest.mark.endurance
def test_every_training_row_of_timm_arrives(tmp_path: Path) -> None:
    source = shared_data("timm_bench")
    (tmp_path / "train_rtx3090.csv").symlink_to(source / "train_rtx3090.csv")
    found = import_set("timm_bench", tmp_path)
    assert len(found.solo) == 1260
    assert len({row.job_key for row in found.solo}) == 1260
    for row in found.solo[::20]:
        check_row(row)


def test_keys_depend_on_everything_that_distinguishes_jobs() -> None:
    keys = {
        job_key("a", "m", 8), job_key("b", "m", 8), job_key("a", "n", 8), job_key("a", "m", 9),
        job_key("a", "m", 8, gpus=2), job_key("a", "m", 8, gpus="2"),
    }  # fmt: skip
    assert len(keys) == 6
    assert job_key("a", "m", 8, x=1, y=2) == job_key("a", "m", 8, y=2, x=1)


def test_the_command_imports_checks_and_lists(tmp_path: Path) -> None:
    imported(tmp_path, "alnair")
    folder = tmp_path / "out"
    run = CliRunner().invoke(datasets, ["import", "alnair", str(tmp_path), "-o", str(folder)], catch_exceptions=False)
    assert run.exit_code == 0
    assert str(folder / "solo.csv") in run.stdout
    assert "1 rows alone, 1 of pairs" in run.stderr
    assert len(read_rows(folder / "solo.csv", SoloRow)) == 1
    run = CliRunner().invoke(datasets, ["check", str(folder)], catch_exceptions=False)
    assert run.stdout == "solo: 1 rows\npairs: 1 rows\n"
    listed = CliRunner().invoke(datasets, ["list"], catch_exceptions=False).stdout
    assert {line.split()[0] for line in listed.splitlines()} >= {*IMPORTERS, "public/torchvision_bench"}


def test_the_check_finds_a_pair_without_its_job(tmp_path: Path) -> None:
    found = imported(tmp_path, "alnair")
    write_set(tmp_path / "out", ImportedSet(pairs=found.pairs))
    with pytest.raises(
        TrainingDataError, match="which solo does not have on alnair-unnamed-gpu in campaign mps_slides"
    ):
        CliRunner().invoke(datasets, ["check", str(tmp_path / "out")], catch_exceptions=False)


def test_the_check_finds_runs_that_are_there_twice_as_a_retraining_would(tmp_path: Path) -> None:
    found = imported(tmp_path, "alnair")
    write_set(tmp_path / "out", dataclasses.replace(found, solo=(*found.solo, *found.solo)))
    with pytest.raises(TrainingDataError, match="1 runs of jobs alone appear more than once"):
        CliRunner().invoke(datasets, ["check", str(tmp_path / "out")], catch_exceptions=False)


def test_an_unknown_set_and_an_empty_folder_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match=r"no importer is called 'galev'; use one of alnair, gavel"):
        import_set("galev", tmp_path)
    with pytest.raises(TrainingDataError, match=r"has no solo\.csv"):
        import_set("gavel", tmp_path)
    with pytest.raises(TrainingDataError, match="has no solo, pairs"):
        CliRunner().invoke(datasets, ["check", str(tmp_path)], catch_exceptions=False)
