"""GPUMemNet's units, its faults, and the features that its layer lists give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotenant.profile_schema import check_row
from predictor_service.errors import TrainingDataError
from predictor_service.importers.gpumemnet import import_gpumemnet
from predictor_service.importers.imported_set import ImportedSet
from tests.support.shared_data import shared_data

CNN_HEADER = (
    "config,depth,layers,activation,activations,params,batch_size,max_gpu_mem_mib,gpu_util_pct,gract,smact,smocc,fp32a,"
    "n_conv2d,n_batchnorm2d,n_dropout,n_avgpool,n_linear,status,arch,input_channels,num_classes,base_filters,input_size\n"
)
MLP_HEADER = (
    "set,config,depth,layers,activation,activations,params,batch_size,max_gpu_mem_mib,gpu_util_pct,gract,smact,smocc,"
    "fp32a,arch,input_size,output_size,n_batchnorm,n_dropout\n"
)
LAYERS = "\"[('conv2d', 64, 40), ('ReLU', 64, 0), ('adaptive_avg_pool2d', 4, 0), ('linear', 3, 15)]\""
TIMM_HEADER = (
    "model,batch_size,max_gpu_mem_mib,faketensor_fwd_mib,faketensor_bwd_mib,faketensor_step_mib,flag_oom,"
    "flag_nonmonotone,clean\n"
)


def cnn_row(memory: str = "2048", util: str = "50", status: str = "SUCCESSFUL", layers: str = LAYERS) -> str:
    sm_activity = "0.4" if util else ""
    return f"c,2,{layers},ReLU,135,55,8,{memory},{util},,{sm_activity},,,1,0,0,1,1,{status},uniform,1,3,4,4\n"


def imported(folder: Path, cnn: str = "", timm: str = "") -> ImportedSet:
    (folder / "cnn.csv").write_text(CNN_HEADER + cnn)
    (folder / "mlp.csv").write_text(MLP_HEADER)
    if timm:
        (folder / "timm_memory.csv").write_text(TIMM_HEADER + timm)
    return import_gpumemnet(folder)


def test_units_become_ours(tmp_path: Path) -> None:
    row = imported(tmp_path, cnn_row()).solo[0]
    check_row(row)
    assert row.memory_peak_bytes == 2048 << 20
    assert (row.utilization_ratio, row.sm_activity_ratio) == (0.5, 0.4)
    assert (row.architecture, row.family, row.batch, row.input_shape) == ("cnn_uniform", "cnn", 8, "1x4x4")


def test_features_hold_no_measurement(tmp_path: Path) -> None:
    features = json.loads(imported(tmp_path, cnn_row()).solo[0].features_json or "")
    assert features["graph.forward_macs_per_sample"] == 16 * 4 * 9 + 12
    assert features["set.params"] == 55
    assert not {f"set.{name}" for name in ("max_gpu_mem_mib", "gpu_util_pct", "smact", "smocc", "gract")} & set(
        features
    )


@pytest.mark.parametrize(
    ("row", "status", "flag"),
    [
        (cnn_row(status="OOM_CRASH", memory="40000"), "out_of_memory", "memory_censored"),
        (cnn_row(memory="1000"), "rejected", "memory_implausible"),
        (cnn_row(layers="[]"), "ok", "layers_not_published"),
        (cnn_row(layers="\"[('conv2d', 64, 41)]\""), "ok", "layers_not_understood"),
        (cnn_row(util=""), "ok", "memory_includes_context"),
    ],
)
def test_a_fault_of_the_set_has_its_status(tmp_path: Path, row: str, status: str, flag: str) -> None:
    found = imported(tmp_path, row).solo[0]
    assert found.status == status
    assert flag in found.quality_flags


@pytest.mark.parametrize(
    ("flags", "status", "names"),
    [
        ("0,0,1", "ok", ()),
        ("1,0,0", "rejected", ("near_device_memory",)),
        ("0,1,0", "rejected", ("less_than_smaller_batch",)),
    ],
)
def test_a_timm_row_is_used_when_it_is_clean(tmp_path: Path, flags: str, status: str, names: tuple[str, ...]) -> None:
    row = imported(tmp_path, timm=f"resnet50,32,4096,10,20,30,{flags}\n").solo[0]
    assert (row.status, row.quality_flags) == (status, ("memory_includes_context", *names))
    assert (row.architecture, row.family) == ("resnet50", "resnet")
    assert json.loads(row.features_json or "")["set.faketensor_step_mib"] == 30


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (cnn_row(layers="nonsense"), "line 2, column layers: is not a list of layers"),
        (cnn_row(layers="\"[('conv2d', -64, 40)]\""), "line 2, column layers: layer 0 is"),
        (cnn_row(util="150"), "line 2, column gpu_util_pct: 150 is above 100"),
        (cnn_row(status="LOST"), "line 2, column status: 'LOST' is none of SUCCESSFUL, OOM_CRASH"),
        (cnn_row(memory=""), "line 2, column max_gpu_mem_mib: is empty"),
    ],
)
def test_a_bad_cell_is_refused_with_its_place(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(TrainingDataError, match=message):
        imported(tmp_path, row)


@pytest.mark.endurance
def test_every_published_row_arrives_and_follows_the_schema() -> None:
    found = import_gpumemnet(shared_data("gpumemnet"))
    counts = {name: sum(row.campaign == name for row in found.solo) for name in ("cnn", "mlp", "timm")}
    assert counts == {"cnn": 1539, "mlp": 4458, "timm": 3855}
    usable = [row for row in found.solo if row.campaign == "cnn" and row.status == "ok"]
    assert len(usable) == 1211
    assert sum("layers_not_published" not in row.quality_flags for row in usable) == 1187
    assert sum(row.status == "ok" for row in found.solo if row.campaign == "timm") == 3257
    assert len({(row.campaign, row.job_key) for row in found.solo}) == len(found.solo)
    for row in found.solo[::25]:
        check_row(row)
