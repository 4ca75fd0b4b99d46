"""A benchmark that is ended stops the cluster and the jobs that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agent import find_processes
from tests.support.real_cluster import ROOT
from tests.support.scheduler_process import wait_until

UP = """
import subprocess, sys, time
state = sys.argv[sys.argv.index("--state-dir") + 1]
job = [sys.executable, "-c", "import time; time.sleep(600)", "job", state]
subprocess.Popen(job, start_new_session=True, stdout=subprocess.DEVNULL)
print("export COTENANT_SCHEDULER=1\\nexport COTENANT_PREDICTOR=2", flush=True)
time.sleep(600)
"""
"""In the place of `up`, whose jobs outlive it."""
BENCHMARK = """
import sys, time
from pathlib import Path
from tests.support.interruptions import unwind_when_ended
from tests.support.real_cluster import real_cluster
unwind_when_ended()
with real_cluster(Path(sys.argv[1]), program=(sys.executable, "-c", sys.argv[2])):
    print("measures", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_benchmark_that_is_ended_leaves_neither_its_cluster_nor_a_job(number: signal.Signals, tmp_path: Path) -> None:
    # As a shell starts what runs in the background: deaf to Ctrl-C.
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", BENCHMARK, str(tmp_path), UP]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as benchmark:
        assert benchmark.stdout is not None
        assert benchmark.stdout.readline() == "measures\n"
        wait_until(lambda: find_processes("job", str(tmp_path)), "the job has begun")
        benchmark.send_signal(number)
        assert benchmark.wait(timeout=60) != 0
    wait_until(lambda: find_processes(str(tmp_path)) == [], "nothing is left")
