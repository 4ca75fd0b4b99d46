"""Gavel's rates become step times, its faults become flags."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from cotenant.profile_schema import check_row
from predictor_service.errors import TrainingDataError
from predictor_service.importers.gavel import import_gavel
from predictor_service.importers.imported_set import ImportedSet, write_set
from tests.support.shared_data import shared_data

SOLO_HEADER = "campaign,gpu,consolidated,model,batch_size,n_gpus,steps_per_s,ran\n"
PAIR_HEADER = (
    "campaign,gpu,victim_model,victim_batch,other_model,other_batch,victim_solo_steps_per_s,victim_packed_steps_per_s,"
    "other_packed_steps_per_s,victim_norm,victim_slowdown,ran_together,clipped\n"
)
SOLO = "2019-08-raw,K80,1,ResNet-18,16,1,10,1\n2019-08-raw,K80,1,A3C,,1,4,1\n"
PAIR = "2019-08-raw,K80,ResNet-18,16,A3C,,10,5,3,0.5,2,1,0\n"


def imported(folder: Path, solo: str = SOLO, pairs: str = PAIR) -> ImportedSet:
    (folder / "solo.csv").write_text(SOLO_HEADER + solo)
    (folder / "pairs.csv").write_text(PAIR_HEADER + pairs)
    return import_gavel(folder)


def test_rates_become_milliseconds_and_slowdowns_lose_their_one(tmp_path: Path) -> None:
    found = imported(tmp_path)
    assert found.solo[0].step_ms_mean == 100
    assert found.pairs[0].slowdown_ratio == 1.0
    assert found.pairs[0].victim_step_ms_mean == 200
    assert found.pairs[0].victim_solo_step_ms_mean == 100
    check_row(found.solo[0])
    check_row(found.pairs[0])


def test_optimizers_are_those_of_the_scripts_where_these_are_known(tmp_path: Path) -> None:
    assert [row.optimizer for row in imported(tmp_path).solo] == ["momentum", "unstated"]


def test_pairs_refer_to_the_solo_row_of_the_same_campaign(tmp_path: Path) -> None:
    found = imported(tmp_path)
    keys = [row.job_key for row in found.solo]
    assert [found.pairs[0].victim_job_key, *found.pairs[0].other_job_keys] == keys


def test_a_job_has_one_key_in_every_campaign_and_on_every_device(tmp_path: Path) -> None:
    found = imported(tmp_path, SOLO + "2020-05-simulation,V100,1,ResNet-18,16,1,30,1\n")
    assert found.solo[0].job_key == found.solo[2].job_key
    assert found.solo[0].campaign != found.solo[2].campaign


def test_larger_jobs_count_samples_of_all_devices_in_their_batch(tmp_path: Path) -> None:
    found = imported(tmp_path, SOLO + "2019-08-raw,K80,0,ResNet-18,16,4,3,1\n")
    row = found.solo[2]
    assert (row.batch, row.sub_batch, row.gpus, row.nodes) == (64, 16, 4, 4)
    assert row.job_key != found.solo[0].job_key


def test_a_pair_that_did_not_fit_has_no_slowdown(tmp_path: Path) -> None:
    found = imported(tmp_path, pairs="2019-08-raw,K80,ResNet-18,16,A3C,,10,,,,,0,0\n")
    assert found.pairs[0].status == "failed"
    assert found.pairs[0].slowdown_ratio is None
    assert found.pairs[0].quality_flags == ("did_not_run_together",)


def test_a_job_that_was_never_measured_alone_still_has_its_facts(tmp_path: Path) -> None:
    found = imported(tmp_path, pairs=PAIR + "2019-08-raw,K80,ResNet-18,16,ResNet-50,256,10,,,,,0,0\n")
    row = found.solo[2]
    assert (row.architecture, row.batch, row.status) == ("ResNet-50", 256, "failed")
    assert row.quality_flags == ("solo_not_published",)


@pytest.mark.parametrize(
    ("row", "flag"),
    [
        ("2019-08-raw,K80,1,A3C,,1,4,1\n", "batch_not_published"),
        ("2019-08-raw,K80,1,Recommendation,512,1,4,1\n", "step_unit_differs"),
        ("2020-05-simulation,K80,0,ResNet-18,16,1,4,1\n", "placement_of_one_device"),
    ],
)
def test_a_fault_of_the_set_becomes_a_flag(tmp_path: Path, row: str, flag: str) -> None:
    found = imported(tmp_path, row)
    assert flag in found.solo[0].quality_flags


def test_a_capped_rate_is_kept_and_flagged(tmp_path: Path) -> None:
    found = imported(tmp_path, pairs="2020-05-simulation,V100,LM,5,LM,10,4,4,3,1,1,1,1\n")
    assert (found.pairs[0].status, found.pairs[0].quality_flags) == ("ok", ("rate_capped_at_solo",))


@pytest.mark.parametrize(
    ("solo", "pairs", "message"),
    [
        ("2019,K80,1,ResNet-18,16,1,fast,1\n", "", "line 2, column steps_per_s: 'fast' is not a number"),
        ("2019,K80,1,ResNet-18,16,1,0,1\n", "", "line 2, column steps_per_s: 0 is not above 0"),
        ("2019,K80,1,ResNet-18,16.5,1,2,1\n", "", "line 2, column batch_size: 16.5 is not a whole number"),
        ("2019,K81,1,ResNet-18,16,1,2,1\n", "", "line 2, column gpu: 'K81' is none of"),
        ("2019,K80,yes,ResNet-18,16,1,2,1\n", "", "line 2, column consolidated: 'yes' is none of 0, 1"),
        (SOLO, PAIR.replace(",0.5,2,", ",0.5,3,"), "line 2, column victim_slowdown: 3 is not solo / packed"),
        ("2019,K80,1,ResNet-18,16,1,nan,1\n", "", "column steps_per_s: nan"),
        ("2019,K80\n", "", "line 2: 2 cells where the header has 8"),
    ],
)
def test_a_bad_cell_is_refused_with_its_place(tmp_path: Path, solo: str, pairs: str, message: str) -> None:
    with pytest.raises(TrainingDataError, match=message):
        imported(tmp_path, solo, pairs)


def test_another_table_of_the_same_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "solo.csv").write_text("model,batch\n")
    with pytest.raises(TrainingDataError, match=r"another table: missing columns .*steps_per_s"):
        import_gavel(tmp_path)


def test_a_file_that_is_no_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "solo.csv.gz").write_bytes(gzip.compress(SOLO_HEADER.encode())[:-9])
    with pytest.raises(TrainingDataError, match="cannot be read"):
        import_gavel(tmp_path)


@pytest.mark.endurance
def test_every_published_row_arrives_and_follows_the_schema(tmp_path: Path) -> None:
    found = import_gavel(shared_data("gavel"))
    assert len(found.solo) == 704 + 1
    assert len(found.pairs) == 2025
    assert sum(row.status == "ok" for row in found.pairs) == 1834
    keys = {(row.campaign, row.device, row.job_key) for row in found.solo}
    assert len(keys) == len(found.solo)
    assert all((row.campaign, row.device, key) in keys for row in found.pairs for key in row.other_job_keys)
    assert write_set(tmp_path, found) == [tmp_path / "pairs.csv", tmp_path / "solo.csv"]
