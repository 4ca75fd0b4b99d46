#!/bin/bash
# Whole GPUs from Slurm for cotenant's own queue (docs/slurm.md#5-execute): what this allocation holds is shared among the jobs
# of `cotenant submit` until it ends; it needs no rights of an operator. Flags behind the script are the agent's.
#
#   sbatch --gres=gpu:2 --time=8:00:00 executor.sh --scheduler login1:7071 --nvml --allow-directory ~/work
#
# 120 s before the time limit, and at scancel, the agent gets SIGTERM: it stops its jobs with their checkpoints, and they wait again.
#SBATCH --job-name=cotenant
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@120
#SBATCH --no-kill
set -euo pipefail
: "${SLURM_JOB_ID:?this is a batch script of Slurm: sbatch $0}"
# Checkpoints outlive the allocation and are found by the next one, so the folder must be one that all nodes see.
FOLDER="${COTENANT_EXECUTOR_FOLDER:-$HOME/.local/state/cotenant/executor}"
mkdir -p "$FOLDER/checkpoints" "$FOLDER/agents"
# The variables are those of the step, which this shell does not know: one agent starts on every node, under the node's name, so
# that the next allocation there is the same node again, as its certificate or token says. COTENANT_EXECUTOR_NODE is another name.
# shellcheck disable=SC2016
AGENT='node=${COTENANT_EXECUTOR_NODE:-$SLURMD_NODENAME}; exec "${COTENANT_PYTHON:-python3}" -m cotenant_agent run --node-id "$node" \
    --state-dir "$0/agents/$node" --checkpoint-dir "$0/checkpoints" --shared-checkpoints --stop-jobs-on-exit "$@"'
# Two nodes may end at different instants, and one may fail: what the others run goes on.
exec srun --kill-on-bad-exit=0 --no-kill bash -c "$AGENT" "$FOLDER" "$@"
