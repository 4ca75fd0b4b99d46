#!/bin/bash
# One line for each job that had GPUs, in the form of sacct, for sites without slurmdbd: `cotenant shadow --sacct FILE` reads it.
# Neither Slurm's own list of completed jobs (jobcomp) nor its counters name GPUs there. In slurm.conf:
#
#   EpilogSlurmctld=/etc/slurm/epilog_slurmctld.sh
#
# A job that ran out of host or device memory is written down as OUT_OF_MEMORY: the latter as its last output says it, where this
# machine can read that. It asks slurmctld one question, holds no job up, and never fails one.
set -uo pipefail
FILE="${COTENANT_ACCOUNTING_FILE:-/var/log/slurm/cotenant-jobs.txt}"
ROW=$(scontrol --oneliner --details show job "${SLURM_JOB_ID:?this is an EpilogSlurmctld of Slurm}") || exit 0
# The name of a job may hold anything; it is taken from the variable, and what stands before its user is cut off.
ROW=" UserId=${ROW#* UserId=}"
DEVICE_OUT_OF_MEMORY='OutOfMemoryError|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED: (Out of memory|OOM)'

value_of() { sed -nE "s/.* $1=([^ ]*).*/\1/p" <<< "$ROW"; }
count_of() { value_of JOB_GRES | tr ',' '\n' | sed -nE "s/^$1:([^:(]*:)?([0-9]+).*/\2/p" | awk '{n += $1} END {print n + 0}'; }

state() {
    case "$(value_of Reason):$(value_of ExitCode)" in
        OutOfMemory:* | *:0:125) echo OUT_OF_MEMORY; return ;;
        TimeLimit:*) echo TIMEOUT; return ;;
        *:0:0) echo COMPLETED; return ;;
    esac
    local output
    output=$(value_of StdErr)
    if [ -f "$output" ] && timeout 5 tail -c 65536 "$output" 2>/dev/null | grep -qE "$DEVICE_OUT_OF_MEMORY"; then
        echo OUT_OF_MEMORY
    else
        echo FAILED
    fi
}

GPUS=$(count_of gpu)
SHARDS=$(count_of shard)
[ "$GPUS" -gt 0 ] || [ "$SHARDS" -gt 0 ] || exit 0
TRES="node=$(value_of NumNodes)"
[ "$GPUS" -eq 0 ] || TRES="$TRES,gres/gpu=$GPUS"
[ "$SHARDS" -eq 0 ] || TRES="$TRES,gres/shard=$SHARDS"
NAME=$(tr -c '[:alnum:]._ -' '_' <<< "${SLURM_JOB_NAME:-}" | head -c 200)
TIMES="$(value_of SubmitTime)|$(value_of StartTime)|$(value_of EndTime)"
# Many end at once: one writes after the other.
{
    flock --timeout 30 9 || exit 0
    [ -s "$FILE" ] || echo "JobIDRaw|JobName|User|Submit|Start|End|State|AllocTRES" >&9
    echo "$SLURM_JOB_ID|${NAME%_}|${SLURM_JOB_USER:-}|$TIMES|$(state)|$TRES" >&9
} 9>> "$FILE"
exit 0
