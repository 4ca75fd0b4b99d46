"""What people type who come from other schedulers and tools, and the command or flag that does it here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_SUBMIT = "cotenant submit -- COMMAND"
_PS = "cotenant ps"
_CANCEL = "cotenant cancel JOB"
_DESCRIBE = "cotenant describe JOB"
_FOLLOW = "cotenant logs -f JOB"
_RETRY = "cotenant retry JOB"
_PREDICT = "cotenant predict --device TYPE -- COMMAND"
HABITS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("sbatch", "qsub", "bsub", "add", "enqueue", "launch", "new", "run", "train"), _SUBMIT),
        **dict.fromkeys(("salloc", "srun"), "cotenant submit --wait -- COMMAND"),
        **dict.fromkeys(("squeue", "qstat", "bjobs", "get", "history", "jobs", "list", "sacct", "top"), _PS),
        "watch": "cotenant ps -w",
        **dict.fromkeys(("scancel", "qdel", "bkill", "abort", "delete", "kill", "remove", "rm", "stop"), _CANCEL),
        **dict.fromkeys(("info", "inspect", "scontrol", "show"), _DESCRIBE),
        **dict.fromkeys(("attach", "cat", "output", "tail"), _FOLLOW),
        **dict.fromkeys(("requeue", "rerun", "restart", "resubmit"), _RETRY),
        **dict.fromkeys(("edit", "set", "update"), "cotenant alter JOB"),
        **dict.fromkeys(("reason", "why"), "cotenant explain JOB"),
        **dict.fromkeys(("estimate", "fit", "fits", "memory"), _PREDICT),
        **dict.fromkeys(("sinfo", "cluster", "hosts"), "cotenant nodes"),
        **dict.fromkeys(("nvidia-smi", "devices"), "cotenant gpus"),
        **dict.fromkeys(("init", "serve", "start"), "cotenant up"),
        **dict.fromkeys(("down", "shutdown"), "Ctrl-C in the terminal of cotenant up"),
        "help": "cotenant --help",
        "settings": "cotenant config view",
    }
)

_AS_DATA: Mapping[str, str] = MappingProxyType({"--json": "-o json", "--format": "-o"})
FLAGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "submit": MappingProxyType(
            {
                **dict.fromkeys(("-J", "--job-name"), "--name"),
                **dict.fromkeys(("-t", "--time", "--time-min"), "--time-limit"),
                **dict.fromkeys(("-G", "--gres", "--gpus-per-node", "--gpus-per-task"), "--gpus"),
                **dict.fromkeys(("-n", "--ntasks", "--ntasks-per-node", "--nproc-per-node"), "--ranks"),
                **dict.fromkeys(("-N", "--nodes"), "--across-nodes"),
                **dict.fromkeys(("-d", "--dependency", "--depend", "--depends-on"), "--after"),
                **dict.fromkeys(("-p", "--partition", "-C", "--constraint"), "--device"),
                **dict.fromkeys(("-D", "--chdir", "--cwd"), "--workdir"),
                **dict.fromkeys(("--export", "-e", "-v"), "--env"),
                **dict.fromkeys(("-q", "--qos", "--nice"), "--priority"),
                **dict.fromkeys(("-A", "--account"), "--tenant"),
                **dict.fromkeys(("-a",), "--array"),
                **dict.fromkeys(("-H",), "--hold"),
                **dict.fromkeys(("-W",), "--wait"),
            }
        ),
        "logs": MappingProxyType(dict.fromkeys(("-n", "--lines"), "--tail")),
        "ps": MappingProxyType({**_AS_DATA, **dict.fromkeys(("-u", "--user"), "--tenant")}),
        "describe": _AS_DATA,
        "explain": _AS_DATA,
    }
)
"""Verb -> flag of another tool -> flag here."""
