#!/usr/bin/env bash
# Measures one NVIDIA GPU and writes a dataset and a report: bash profiling/measure_gpu.sh RESULTS_FOLDER [--dry-run]
# Resumable: the same folder goes on where it was. DEADLINE_S bounds one call (exit status 3: run it again).
# --dry-run takes the same path on the stand-in device, a CPU core, in about three minutes.
set -euo pipefail
results=${1:?usage: bash profiling/measure_gpu.sh RESULTS_FOLDER [--dry-run]}
results=$(realpath -m "$results")
cd "$(dirname "$0")/.."
campaign=profiling/campaigns/nvidia_gpu.toml
device=nvidia:0
if [ "${2:-}" = "--dry-run" ]; then
    campaign=profiling/campaigns/nvidia_gpu_dry_run.toml
    device=cpu-standin
fi
python=${PYTHON:-.venv/bin/python}
mkdir -p "$results"
"$python" -m cotenant_profiler probe "$device" | tee "$results/probe.json"
"$python" -m cotenant_profiler run "$campaign" --out "$results" ${DEADLINE_S:+--deadline-s "$DEADLINE_S"} || status=$?
"$python" -m cotenant_profiler dataset "$campaign" --out "$results" --to "$results/dataset"
"$python" -m cotenant_profiler report "$results/dataset" -o "$results/report.html"
"$python" -m cotenant_profiler status "$results" | tee "$results/summary.txt"
exit "${status:-0}"
