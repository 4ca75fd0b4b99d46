"""What people type who come from other schedulers and tools, and the command that does it here."""

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
        **dict.fromkeys(("sbatch", "qsub", "bsub", "add", "enqueue", "launch", "new", "run"), _SUBMIT),
        **dict.fromkeys(("salloc", "srun"), "cotenant submit --wait -- COMMAND"),
        **dict.fromkeys(("squeue", "qstat", "bjobs", "get", "history", "jobs", "list", "sacct", "top"), _PS),
        "watch": "cotenant ps -w",
        **dict.fromkeys(("scancel", "qdel", "bkill", "abort", "delete", "kill", "remove", "rm", "stop"), _CANCEL),
        **dict.fromkeys(("info", "inspect", "scontrol", "show"), _DESCRIBE),
        **dict.fromkeys(("attach", "cat", "output", "tail"), _FOLLOW),
        **dict.fromkeys(("requeue", "rerun", "restart", "resubmit"), _RETRY),
        **dict.fromkeys(("edit", "set", "update"), "cotenant alter JOB"),
        **dict.fromkeys(("reason", "why"), "cotenant explain JOB"),
        **dict.fromkeys(("estimate", "fit", "fits", "memory", "train"), _PREDICT),
        **dict.fromkeys(("sinfo", "cluster", "hosts"), "cotenant nodes"),
        **dict.fromkeys(("nvidia-smi", "devices"), "cotenant gpus"),
        **dict.fromkeys(("init", "serve", "start"), "cotenant up"),
        **dict.fromkeys(("down", "shutdown"), "Ctrl-C in the terminal of `cotenant up`"),
        "help": "cotenant --help, or cotenant VERB --help",
        "settings": "cotenant config view",
    }
)
