"""Each way in which nothing is captured, in one sentence with its remedy."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final

from cotenant.capture.in_script.step_export import OLDEST_TORCH
from cotenant.capture.script_run import NO_PROGRAM_STATUS, USAGE_STATUS, ScriptOutcome, ScriptPlan
from cotenant.client_errors import CotenantError
from cotenant.ignored_exceptions import without_ignored
from cotenant.missing_input import asked_for_input, lacks_arguments
from cotenant.missing_variable import missing_variable
from cotenant.program_lookup import NOTEBOOK, as_script, misread, script_of
from cotenant.quantities import format_percent
from cotenant.terminal_text import harmless

COMPLEX_NUMBERS: Final = "the network computes with complex numbers, for most of which ONNX has no operators"
"""What the program that converts says of a network that no export, by hand or otherwise, brings into a graph."""
MEASURED: Final = "submit it without a graph: then it is measured"
BY_HAND: Final = "export it by hand (docs/training_scripts.md), or submit it without a graph: then it is measured"
PLAIN: Final = f"train the network without torch.jit, or {MEASURED}"
_SCRIPTED: Final = "Exporting a ScriptModule"
_SIGNALS: Final[Mapping[int, str]] = MappingProxyType({9: "was killed", 11: "crashed", 6: "aborted"})
_SIGXCPU: Final = 24
_TOLD_CHARACTERS: Final = 200
_NO_MEMORY: Final = ("can't allocate memory", "MemoryError", "Cannot allocate memory", "bad_alloc")
_OF_NOTEBOOK: Final = ("name 'get_ipython' is not defined",)
_NO_FILE: Final = "FileNotFoundError: [Errno 2] No such file or directory: "
_NO_INPUT: Final = "EOFError: EOF when reading a line"
_NO_SPACE: Final = "No space left on device"
_NO_NETWORK: Final = (
    "Temporary failure in name resolution", "Name or service not known", "Network is unreachable", "ConnectionError",
    "Failed to establish a new connection",
)  # fmt: skip
_DEPENDS_ON_VALUES: Final = re.compile(
    r"data-dependent expression.*Caused by: \((?:.*/)?([^/\n]{1,100}):([0-9]{1,9}) in (\w{1,100})\)", re.DOTALL
)
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_USAGE: Final = re.compile(
    r"(?:^|: )(?:error: (?:the following arguments are|one of the arguments|argument \S+: |unrecognized arg)"
    r"|Error: (?:Missing|No such|Got unexpected) )"
)
_HIDDEN: Final = re.compile(
    r"(?:ImportError: cannot import name '\w+' from|AttributeError: module) '([\w.]+)'"
    r"[^(]*\((?:consider renaming ')?(/[^()'\n]{1,4096}\.py)"
)
_OF_PYTHON: Final = re.compile(r"/lib(?:64)?/python3\.[0-9]+/")
_IN_THE_SCRIPT: Final = re.compile(
    r'The following call raised this error:\s+File "(?:[^"]*/)?([^"/]+)", line ([0-9]{1,9}), in (\w{1,100})'
)
_RAISED: Final = re.compile(
    r"(?:\[rank[0-9]{1,6}\]:? {0,3})?([A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit)(?:: .*)?)"
)
_OF_LAUNCHERS: Final = ("torch.distributed.elastic.", "subprocess.CalledProcessError")
_LOG_SHOWN_CHARACTERS: Final = 4_000
_OTHER_PYTHON: Final = "activate the environment in which the script runs, or write its Python in full"


class NotCapturedError(CotenantError):
    """Nothing that can be predicted was found; the job can still be submitted and measured.

    Attributes:
        log: The end of what the script printed, where it shows why.
    """

    def __init__(self, message: str, *, remedy: str = BY_HAND, log: str = "") -> None:
        super().__init__(f"not captured: {message}", remedy=remedy)
        self.log = _end_of(log)


def _end_of(log: str) -> str:
    """As much of the end as is worth showing, from the beginning of a line where there is one."""
    if len(log) <= _LOG_SHOWN_CHARACTERS:
        return log
    end = log[-_LOG_SHOWN_CHARACTERS:]
    return end.partition("\n")[2] or end


class OverlayRefusedError(CotenantError):
    """This machine lets no user lay an overlay over its file systems."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no overlay can be laid over this machine's folders ({reason})")


def why_not(plan: ScriptPlan, outcome: ScriptOutcome) -> NotCapturedError:
    """Returns why a script's run has told nothing."""
    if outcome.result:
        return _BY_REASON[outcome.result["reason"]](outcome.result)
    if outcome.status == NO_PROGRAM_STATUS:
        return NotCapturedError(
            outcome.log.strip() or "the command cannot be started",
            remedy=misread(plan.command[0]) or "check the command",
        )
    if outcome.status in (-_SIGXCPU, 128 + _SIGXCPU):
        return NotCapturedError(f"no forward pass of a network within {plan.cpu_s} CPU seconds")
    if outcome.status:
        return _failed(plan, outcome, outcome.status)
    if not outcome.has_started:
        return NotCapturedError("no Python took part, or one that ignores PYTHONPATH (-I, -E)", remedy=BY_HAND)
    if not outcome.has_torch:
        return NotCapturedError(
            "the script ended without importing torch; other frameworks, and processes that are started without the "
            "variables of this one, are not captured"
        )
    if not outcome.has_stepped:
        return NotCapturedError("the script ended, and no optimizer of torch.optim has made a step", log=outcome.log)
    return NotCapturedError("the script ended before its second optimizer step", log=outcome.log)


def _failed(plan: ScriptPlan, outcome: ScriptOutcome, status: int) -> NotCapturedError:
    how = _SIGNALS.get(-status, f"was ended by signal {-status}") if status < 0 else f"failed (exit {status})"
    for signs, cause, remedy in (
        (
            _NO_MEMORY,
            f"it needs more than {plan.memory_bytes >> 20} MiB on the CPU",
            "raise --memory-limit, or capture it with a smaller batch and state its own by --batch-size",
        ),
        ((_NO_SPACE,), "it writes more than the overlay in memory holds", "raise --memory-limit"),
        (
            _OF_NOTEBOOK,
            "it has commands of a notebook",
            "start it with ipython, or take the lines with get_ipython out",
        ),
        (_NO_NETWORK, "it wants the network, which a capture has not", "let it find its data on this machine first"),
    ):
        if any(sign in _end_of(outcome.log) for sign in signs):
            return NotCapturedError(f"the script {how}: {cause}", remedy=f"{remedy}; else {BY_HAND}", log=outcome.log)
    last = _last_words(outcome.log)
    hidden = None if _OF_PYTHON.search(last) else _HIDDEN.search(last)
    if hidden and hidden[1].partition(".")[0] in sys.stdlib_module_names:
        cause = harmless(f"{hidden[2]} stands in front of Python's own module {hidden[1]}")
        return NotCapturedError(f"the script {how}: {cause}", remedy=harmless(f"rename {hidden[2]}"), log=outcome.log)
    if missing := _NO_MODULE.match(last):
        cause = f"{harmless(plan.command[0])} has no module named {missing[1]}"
        return NotCapturedError(f"the script {how}: {cause}", remedy=_OTHER_PYTHON, log=outcome.log)
    if folder := _folder_with_file(plan, last):
        cause = f"{last.removeprefix(_NO_FILE).strip()} is not there from {plan.directory}, but is from {folder}"
        name = PurePath(script_of(plan.command)).name
        remedy = harmless(f"start it as {name} from there: cd {folder}; submit: --workdir {folder}")
        return NotCapturedError(harmless(f"the script {how}: {cause}"), remedy=remedy)
    if last == _NO_INPUT or asked_for_input(outcome.log):
        cause = "it asks for input, and a job has none"
        return NotCapturedError(f"the script {how}: {cause}", remedy="give it as arguments or in a file")
    if name := missing_variable(outcome.log):
        cause = f"the variable {name} is not set"
        return NotCapturedError(f"the script {how}: {cause}", remedy=f"export {name}=VALUE; submit: --env {name}=VALUE")
    if notebook := next((word for word in plan.command if word.endswith(NOTEBOOK)), ""):
        return NotCapturedError(f"{harmless(notebook)} is a notebook, and no script", remedy=as_script(notebook))
    remedy = f"make it run on the CPU for two steps, or {MEASURED}"
    if (status == USAGE_STATUS and _USAGE.search(last) is not None) or lacks_arguments(outcome.log):
        remedy = "write behind the script what you give it when you start it yourself"
    told = f": {harmless(last)[:_TOLD_CHARACTERS]}" if last else ""
    return NotCapturedError(f"the script {how} before its second optimizer step{told}", remedy=remedy, log=outcome.log)


def _folder_with_file(plan: ScriptPlan, last: str) -> Path | None:
    """The folder of the script, where that has the file that was missed in the folder in which it was started."""
    missed = last.removeprefix(_NO_FILE).strip("' ")
    script = script_of(plan.command)
    if not last.startswith(_NO_FILE) or not missed or not script or PurePath(missed).is_absolute():
        return None
    folder = (plan.directory / script).parent
    try:
        return folder if folder != plan.directory and (folder / missed).exists() else None
    except OSError:  # a log may say anything, and a folder may be closed to us
        return None


def _last_words(log: str) -> str:
    """The exception that ended the script, else its last line: bars and launchers print something behind it."""
    lines = [line.strip() for line in without_ignored(log).splitlines() if line.strip()]
    raised = [found[1] for line in lines if (found := _RAISED.fullmatch(line)) is not None]
    own = [each for each in raised if not each.startswith(_OF_LAUNCHERS)]
    return (own or lines or [""])[-1]


def name_networks(classes: Sequence[str]) -> str:
    """Returns the networks that were called by their classes, alike ones once: `6 x Coupling, Head`."""
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in Counter(classes).items())


def _covered(result: Mapping[str, Any]) -> NotCapturedError:
    names, share = name_networks(result["networks"]) or "none", format_percent(result["covered_ratio"])
    return NotCapturedError(
        f"the networks that were called ({names}) hold {share} of the parameters that the optimizers train, "
        "less than 95 %: what the script does with the others cannot be seen from outside",
        remedy=f"call networks as network(x), since network.forward(x) is not seen; else {BY_HAND}",
    )


def _refused(result: Mapping[str, Any]) -> NotCapturedError:
    detail = result["detail"].strip()
    refused = "torch.export refused the network"
    if _SCRIPTED in detail:
        return NotCapturedError(
            "torch.jit has compiled the network, and torch.export takes none of those", remedy=PLAIN
        )
    place = _DEPENDS_ON_VALUES.search(detail)
    if place is not None:
        file, line, function = (_IN_THE_SCRIPT.search(detail) or place).groups()
        cause = f"since what it does depends on the values that it is given ({file}, line {line}, in {function})"
        return NotCapturedError(harmless(f"{refused}, {cause}"))
    cause = f": {detail.splitlines()[0][:300]}" if detail else ""
    return NotCapturedError(harmless(f"{refused}{cause}"), log=result["trace"])


_BY_REASON: Final[Mapping[str, Callable[[Mapping[str, Any]], NotCapturedError]]] = MappingProxyType(
    {
        "covered": _covered,
        "no_forward": lambda result: NotCapturedError("no network was called with gradients before an optimizer step"),
        "transformed": lambda result: NotCapturedError(
            "the network is called inside torch.func (vmap or grad): what it keeps there cannot be seen from outside"
        ),
        "nested": lambda result: NotCapturedError(
            "the network takes nested tensors, of which torch exports none",
            remedy=f"hand in a padded batch with a mask where it is captured, or {MEASURED}",
        ),
        "sparse": lambda result: NotCapturedError(
            "the network takes sparse tensors, for which ONNX has no operators",
            remedy=f"hand in dense ones where it is captured, or {MEASURED}",
        ),
        "quantized": lambda result: NotCapturedError(
            "the network trains for quantization (torch.ao), whose fake quantizers decide by values: no graph has any",
            remedy=f"capture it without prepare_qat (with it steps are longer and need more memory), or {MEASURED}",
        ),
        "old_torch": lambda result: NotCapturedError(
            f"a graph is read off torch {OLDEST_TORCH} or later, and the script has {result['torch_version']}",
            remedy=f"run it with a later torch where it is captured, or {BY_HAND}",
        ),
        "no_tensor": lambda result: NotCapturedError("the network takes no tensor, so no batch can be seen"),
        "asked_limit": lambda result: NotCapturedError(
            "the CPU time of a capture ended in calls of the network without gradients (a validation, a rollout), "
            "before it learned from any",
            remedy=f"let it begin to train at once, or with a smaller batch, where it is captured, or {MEASURED}",
        ),
        "step_limit": lambda result: NotCapturedError(
            "the CPU time of a capture ended before a whole step of the script",
            remedy=f"let it begin with a smaller batch where it is captured, or {MEASURED}",
        ),
        "export_limit": lambda result: NotCapturedError("torch.export needed too much CPU time"),
        "export": _refused,
    }
)
