#!/usr/bin/env bash
# Measures datasets/cpu_standin anew: bash profiling/measure_cpu_standin.sh RESULTS_FOLDER
# 40 minutes on a machine that does nothing else. Resumable: the same folder goes on where it was.
set -euo pipefail
results=${1:?usage: bash profiling/measure_cpu_standin.sh RESULTS_FOLDER}
results=$(realpath -m "$results")
cd "$(dirname "$0")/.."
campaign=profiling/campaigns/cpu_standin_large.toml
dataset=datasets/cpu_standin
.venv/bin/python -m cotenant_profiler run "$campaign" --out "$results"
rm -rf "$dataset/graphs"
.venv/bin/python -m cotenant_profiler dataset "$campaign" --out "$results" --to "$dataset"
.venv/bin/python -m cotenant_profiler status "$results" > "$dataset/summary.txt"
cat "$dataset/summary.txt"
(cd "$dataset" && sha256sum solo.csv pairs.csv memory_traces.csv graphs/*.onnx > SHA256SUMS)
