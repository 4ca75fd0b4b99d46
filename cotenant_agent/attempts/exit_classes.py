"""Why an attempt ended, in one word. The order of the questions is the meaning: the first yes decides."""

from __future__ import annotations

import re
import signal

from cotenant.ignored_exceptions import without_ignored
from cotenant.missing_input import asked_for_input, lacks_arguments
from cotenant.missing_variable import missing_variable
from cotenant_agent.keeper.rank_ends import SILENT_RANKS
from cotenant_agent.records import ExitFacts

CHECKPOINTED_CODE = 85
_NOT_EXECUTABLE_CODE = 126
_NOT_FOUND_CODE = 127
_SIGNALS_OF_SHELLS = 128

_GPU_OUT_OF_MEMORY = re.compile(
    r"torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory|RESOURCE_EXHAUSTED: OOM"
)
_CAUSE_WORDS = {SILENT_RANKS: "one rank had ended with 0, the others then neither printed nor made a step"}
_ASKED_FOR = re.compile(r"[Tt]r(?:ied|ying) to allocate ([0-9.]{1,12} ?(?:[KMGT]i?B|bytes))")
_GPU_FAULT = re.compile(
    r"\bXid\b|uncorrectable ECC|an illegal memory access was encountered|fallen off the bus|device-side assert"
    r"|CUDA_ERROR_(ECC_UNCORRECTABLE|ILLEGAL_ADDRESS|HARDWARE_STACK_ERROR)|unspecified launch failure"
)
# Shells, env and Python each have their own words; of a shell's line the part behind the number of the line is meant.
_MISSING_COMMAND = re.compile(
    r"(?m)^(?:.{0,300}(?:line [0-9]{1,9}|: [0-9]{1,9}|env|bash|zsh|sh): )?"
    r"([^:\r\n]{1,200}: (?:(?:command )?not found|No such file or directory|Permission denied|Is a directory"
    r"|cannot execute[^\r\n]{0,100}|Exec format error))\s*$"
)
_CANNOT_START = re.compile(r"(?m)^cotenant: cannot start ([^\r\n]{1,300})$")
# At the end only: a script may print one that it caught. Further lines of a message are indented.
_EXCEPTION = re.compile(
    r"(?m)^Traceback \(most recent call last\):\r?\n(?:[ \t][^\n]{0,1000}\n)+"
    r"([A-Za-z_][\w.]{0,100}(?:: [^\r\n]{1,200})?)[^\n]{0,4000}(?:\n[ \t][^\n]{0,1000}){0,40}\s{0,4}\Z"
)
# Of the script itself, which has no traceback.
_NOT_PYTHON = re.compile(r"(?m)^((?:Syntax|Indentation|Tab)Error: [^\r\n]{1,200})\s*\Z")
_NOT_STARTED = re.compile(
    r"(?m)^(?:/[^\r\n:]{0,300}/)?(python[0-9.]{0,8}: (?:can't (?:open|find)|No module named) [^\r\n]{1,300}"
    r"|g?make(?:\[[0-9]{1,3}\])?: \*\*\* [^\r\n]{1,200})\s*\Z"
)
_MISSING_MODULE = re.compile(r"(?m)^(ModuleNotFoundError: No module named [^\r\n]{1,200})\s*\Z")
_WRONG_ARGUMENTS = re.compile(r"(?m)^[^\s:][^:\r\n]{0,200}: (error: [^\r\n]{1,200})\s*\Z")
_WRONG_ARGUMENTS_CODE = 2
_HALF_WRITTEN = re.compile(
    r"inline_container\.cc:[0-9]{1,6}\].{0,40}unexpected pos|PytorchStreamWriter failed writing file"
)
_MEANINGS = {
    _NOT_FOUND_CODE: "a command was not found, as shells say it",
    _NOT_EXECUTABLE_CODE: "a command cannot be executed, as shells say it",
}
_COMMUNICATION = re.compile(
    r"NCCL (error|timeout)|ncclSystemError|ncclRemoteError|Watchdog caught collective operation timeout"
    r"|Connection closed by peer|DistNetworkError|DistStoreError"
)


def classify(facts: ExitFacts) -> str:
    """One of done, fenced, host_oom, gpu_oom, checkpointed, stopped, gpu_fault, communication, signal, error, lost."""
    if facts.return_code is None:
        return "lost"
    # A job that was asked to stop may exit with 0; that is no success.
    if facts.return_code == 0 and not facts.cause:
        return "done"
    if facts.cause == "fenced":
        return "fenced"
    if facts.oom_kills > 0:
        return "host_oom"
    if _ran_out_of_device_memory(facts):
        return "gpu_oom"
    if facts.return_code == CHECKPOINTED_CODE and facts.checkpoint_is_new:
        return "checkpointed"
    if facts.cause:
        return "stopped"
    if _GPU_FAULT.search(facts.log_tail):
        return "gpu_fault"
    if _COMMUNICATION.search(facts.log_tail):
        return "communication"
    return "signal" if facts.return_code < 0 else "error"


def describe(exit_class: str, facts: ExitFacts) -> str:
    """The same in words, without the numbers of memory that only the agent knows."""
    if facts.return_code is None:
        return "the job's keeper is gone (killed, or the machine restarted); the exit code is unknown"
    ending = f"exit code {facts.return_code}"
    if facts.return_code < 0:
        ending = f"signal {_signal_name(-facts.return_code)}"
    cause = f" after a stop ({_CAUSE_WORDS.get(facts.cause, facts.cause)})" if facts.cause else ""
    doubt = ""
    if facts.return_code == CHECKPOINTED_CODE and exit_class != "checkpointed" and not facts.checkpoint_is_new:
        doubt = "; no checkpoint manifest newer than the request, so nothing new is resumed"
    asked = _ASKED_FOR.findall(facts.log_tail) if exit_class == "gpu_oom" else []
    allocation = f"; it tried to allocate {asked[-1]}" if asked else ""
    missing = _what_was_wrong(facts) if exit_class == "error" else ""
    return f"{ending}{cause}{doubt}{allocation}{missing}"


def _what_was_wrong(facts: ExitFacts) -> str:
    """Return the command, module, input or argument that was missing, or the exception, as the log's end names it."""
    if asked_for_input(facts.log_tail):
        return ": it asked for input, and a job has no standard input; give it as arguments or in a file"
    if name := missing_variable(facts.log_tail):
        return f": {name} is not set; of your shell's variables a job has those of --env only: --env {name}=VALUE"
    kinds: tuple[re.Pattern[str], ...] = (_MISSING_MODULE, _EXCEPTION, _NOT_PYTHON, _NOT_STARTED)
    if facts.return_code in _MEANINGS:
        kinds = (_CANNOT_START, _MISSING_COMMAND)
    elif facts.return_code == _WRONG_ARGUMENTS_CODE:
        kinds = (_WRONG_ARGUMENTS, _NOT_STARTED)
    tail = without_ignored(facts.log_tail)
    named = next((found[-1].strip() for kind in kinds if (found := kind.findall(tail))), "")
    said = named or _MEANINGS.get(facts.return_code or 0, "") or _of_shells(facts.return_code or 0)
    if _HALF_WRITTEN.search(said) is not None:
        said = f"torch.save could not write its file whole, as where a disk or a quota is full: {said}"
    if lacks_arguments(facts.log_tail):
        said = f"{said}: it looked for an argument that its command has not: write it behind the script"
    return f": {said}" if said else ""


def _of_shells(code: int) -> str:
    """What a shell means by its exit code where a signal ended its command; empty = no such code."""
    name = _signal_name(code - _SIGNALS_OF_SHELLS)
    if not name.startswith("SIG"):
        return ""
    often = ": often for lack of host memory" if name == signal.SIGKILL.name else ""
    return f"a command was ended by {name}, as shells say it{often}"


def _ran_out_of_device_memory(facts: ExitFacts) -> bool:
    if facts.cause == "gpu_oom" or facts.reported_failure == "gpu_oom":
        return True
    return not facts.cause and _GPU_OUT_OF_MEMORY.search(facts.log_tail) is not None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
