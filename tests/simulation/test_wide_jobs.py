"""A wide job of a high class starts within the length of the jobs before it, however many narrow ones follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from scheduler_service.core.records import Share

NARROW_S = 600
WIDE_AT_S = 3_000
NARROW_JOBS = 200


def write_stream(folder: Path) -> Path:
    """More narrow jobs of a low class than eight GPUs can take, and one for a whole node of a high class."""
    lines = ["job_id,submit_time_s,duration_s,num_gpus,priority", f"wide,{WIDE_AT_S},1200,4,100"]
    lines += [f"narrow-{number},{number * 60},{NARROW_S - number * 37 % 300},1,-100" for number in range(NARROW_JOBS)]
    path = folder / "stream.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("policy", ["fifo", "horus", "sjf_bsbf", "tiresias"])
def test_a_wide_job_of_a_high_class_waits_no_longer_than_the_jobs_before_it_run(policy: str, tmp_path: Path) -> None:
    trace = read_trace(write_stream(tmp_path), Consent(share=Share.NEVER), seed=None)
    cluster = read_cluster("2x4", device=trace.device)
    predictor = TruthPredictor(trace.truth, parse_errors("noise:0.1", seed=0))
    result = Simulation(trace, cluster, predictor, RunSettings(policy=policy)).run()
    assert result.unfinished == 0
    [wide_id] = [job.request.job_id for job in trace.jobs if job.request.gpus == 4]
    [wide] = [job for job in result.jobs if job.job_id == wide_id]
    waited_s = (wide.first_started_at_ms - wide.submitted_at_ms) / 1_000
    assert waited_s <= 1.2 * NARROW_S
    # GPUs are kept back, yet short jobs go meanwhile: the whole stream ends hardly later than without a wide job.
    capacity_s = sum(NARROW_S - number * 37 % 300 for number in range(NARROW_JOBS)) / 8
    assert max(job.finished_at_ms for job in result.jobs) / 1_000 <= 1.15 * (capacity_s + 600)
