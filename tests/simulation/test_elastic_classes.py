"""Elastic jobs of several classes: no two of them give the same GPUs to and fro for ever."""

from __future__ import annotations

from pathlib import Path

from cotenant_simulator.readers.chosen_counts import with_gpu_counts
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from scheduler_service.core.records import Share

JOBS = """submit_time_s,duration_s,num_gpus,priority
9,1702,1,0
50,547,2,0
56,36,1,100
142,12,1,100
239,815,1,0
240,954,1,100
255,504,1,0
423,734,1,100
"""


def test_elastic_jobs_of_two_classes_all_finish(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    trace = with_gpu_counts(read_trace(tmp_path / "jobs.csv", Consent(share=Share.NEVER), seed=None), (1, 2, 4))
    cluster = read_cluster("2x4", device=trace.device)
    predictor = TruthPredictor(trace.truth, parse_errors("oracle", seed=0))
    result = Simulation(trace, cluster, predictor, RunSettings(policy="elastic")).run()
    assert result.unfinished == 0
