"""Every way in which nothing is captured has its sentence and a remedy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cotenant.capture.captured_files import target_files
from cotenant.capture.reasons import why_not
from cotenant.capture.script_run import NO_PROGRAM_STATUS, ScriptOutcome, ScriptPlan
from cotenant.client_errors import InputError
from tests.support.cases import for_each

PLAN = ScriptPlan(command=["python", "x.py"], directory=Path(), environment={}, isolated=True, memory_bytes=2**30)


DEPENDS_ON_VALUES = """Could not guard on data-dependent expression Ne(u0, 0) (unhinted: Ne(u0, 0)).  (Size-like: u0)

consider using data-dependent friendly APIs such as guard_or_false, guard_or_true and statically_known_true.
Caused by: (home/ann/routed experts.py:11 in forward)
For more information, run with TORCH_LOGS="dynamic"
"""


DEPENDS_IN_TORCH = """Could not extract specialized integer from data-dependent expression u0 (unhinted: u0).

Caused by: (_export/non_strict_utils.py:1205 in __torch_function__)
For more information, run with TORCH_LOGS="dynamic"

The following call raised this error:
  File "/home/ann/graph net.py", line 10, in forward
    count = int(batch.max()) + 1
"""


IN_TRAINER = """Traceback (most recent call last):
  File "train.py", line 10, in <module>
ValueError: You must specify labels
  0%|          | 0/60 [00:00<?, ?it/s]
"""


IN_NOTEBOOK_BAR = """Traceback (most recent call last):
  File "notebook.py", line 26, in train
ImportError: IProgress not found. Please update jupyter and ipywidgets
Exception ignored in: <function tqdm.__del__ at 0x7f03d8617880>
Traceback (most recent call last):
  File "tqdm/std.py", line 1154, in __del__
    self.close()
AttributeError: 'tqdm_notebook' object has no attribute 'disp'
"""


UNDER_TORCHRUN = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in <module>
[rank0]: KeyError: 'depth'
Traceback (most recent call last):
  File "run.py", line 994, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
============================================================
"""


SCRIPTED = "Exporting a ScriptModule is not supported. Maybe try converting your ScriptModule"


def outcome(**facts: Any) -> ScriptOutcome:
    usual = {
        "result": {},
        "status": 0,
        "has_started": True,
        "has_torch": True,
        "has_stepped": True,
        "log": "",
        "not_isolated": "",
    }
    return ScriptOutcome(**{**usual, **facts})


@for_each(
    ("last", "is_usage"),
    [
        ("train.py: error: the following arguments are required: data", True),
        ("train.py: error: argument --lr: invalid float value: 'x'", True),
        ("train.py: error: unrecognized arguments: --epoch 3", True),
        ("Error: Missing option '--data'.", True),
        ("RuntimeError: error: argument of the kernel", False),
        ("data error: 3", False),
    ],
)
def test_a_script_that_misses_arguments_is_to_be_given_them(last: str, is_usage: bool) -> None:
    for status in (1, 2):
        told = why_not(PLAN, outcome(status=status, log=f"usage: train.py data\n{last}\n"))
        assert told.remedy.startswith("write behind the script what") is (is_usage and status == 2)


@for_each(
    ("line", "last", "is_usage"),
    [
        ("data = sys.argv[1]", "IndexError: list index out of range", True),
        ("_, data, out = sys.argv", "ValueError: not enough values to unpack (expected 3, got 1)", True),
        ("data = names[1]", "IndexError: list index out of range", False),
        ("data = int(sys.argv[1])", "ValueError: invalid literal for int() with base 10: 'x'", False),
    ],
)
def test_a_script_that_looks_for_an_argument_in_vain_is_to_be_given_it(line: str, last: str, is_usage: bool) -> None:
    for marks in ("", "           ~~~~~~~~^^^\n"):
        log = f'Traceback (most recent call last):\n  File "/x/a.py", line 3, in <module>\n    {line}\n{marks}{last}\n'
        told = why_not(PLAN, outcome(status=1, log=log))
        assert told.remedy.startswith("write behind the script what") is is_usage


@for_each(
    ("facts", "told"),
    [
        ({}, "ended before its second optimizer step"),
        (
            {"has_torch": False},
            "without importing torch; other frameworks, and processes that are started without the var",
        ),
        ({"has_stepped": False}, "no optimizer of torch.optim has made a step"),
        ({"result": {"reason": "transformed"}}, "inside torch.func"),
        ({"result": {"reason": "asked_limit"}}, "calls of the network without gradients"),
        (
            {"result": {"reason": "old_torch", "torch_version": "2.4.1"}},
            "off torch 2.6 or later, and the script has 2.4.1",
        ),
        ({"result": {"reason": "nested"}}, "takes nested tensors, of which torch exports none"),
        ({"result": {"reason": "quantized"}}, "trains for quantization"),
        ({"result": {"reason": "sparse"}}, "takes sparse tensors, for which ONNX has no operators"),
        ({"has_started": False, "has_torch": False}, "ignores PYTHONPATH"),
        ({"status": 96, "log": "cannot start x: No such file"}, "cannot start x"),
        ({"status": -24}, "within 120 CPU seconds"),
        (
            {"status": 3, "log": "KeyError: 'HOME'"},
            "failed (exit 3) before its second optimizer step: KeyError: 'HOME'",
        ),
        ({"status": 1, "log": "Traceback\n\x1b[31mValueError\n\n"}, "step: \ufffd[31mValueError"),
        (
            {"status": 1, "log": "ImportError: cannot import name 'Queue' from 'queue' (/home/me/my work/queue.py)\n"},
            "/home/me/my work/queue.py stands in front of Python's own module queue",
        ),
        (
            {
                "status": 1,
                "log": "AttributeError: module 'queue' has no attribute 'Queue' (consider renaming '/home/me/queue.py' "
                "since it has the same name as the standard library module named 'queue')\n",
            },
            "/home/me/queue.py stands in front of Python's own module queue",
        ),
        (
            {
                "status": 1,
                "log": "ImportError: cannot import name 'Mapping' from 'collections' "
                "(/usr/lib/python3.11/collections/__init__.py)\n",
            },
            "step: ImportError: cannot import name 'Mapping' from 'collections'",
        ),
        (
            {"status": 1, "log": "ImportError: cannot import name 'Queue' from 'mine' (/home/me/mine.py)\n"},
            "step: ImportError: cannot import name 'Queue' from 'mine'",
        ),
        (
            {"status": 1, "log": "Traceback\nModuleNotFoundError: No module named 'torch.x'\n"},
            "the script failed (exit 1): python has no module named torch.x",
        ),
        ({"status": 1, "log": IN_TRAINER}, "step: ValueError: You must specify labels"),
        ({"status": 1, "log": IN_NOTEBOOK_BAR}, "step: ImportError: IProgress not found."),
        ({"status": 1, "log": UNDER_TORCHRUN}, "step: KeyError: 'depth'"),
        (
            {
                "status": 1,
                "log": UNDER_TORCHRUN.replace("KeyError: 'depth'", "ModuleNotFoundError: No module named 'x'"),
            },
            "python has no module named x",
        ),
        (
            {"status": 1, "log": "  File \"<frozen os>\", line 679, in __getitem__\nKeyError: 'DATA_ROOT'\n"},
            "the variable DATA_ROOT is not set",
        ),
        (
            {"status": 1, "log": "Go on? Traceback\nEOFError: EOF when reading a line\n"},
            "asks for input, and a job has none",
        ),
        (
            {"status": 1, "log": '  File "getpass.py", line 148, in _raw_input\n    raise EOFError\nEOFError\n'},
            "asks for input, and a job has none",
        ),
        ({"status": -11}, "the script crashed"),
        ({"status": 1, "log": "DefaultCPUAllocator: can't allocate memory"}, "more than 1024 MiB"),
        ({"status": 1, "log": "NameError: name 'get_ipython' is not defined"}, "commands of a notebook"),
        ({"status": 1, "log": "OSError: [Errno 28] No space left on device"}, "more than the overlay"),
        ({"status": 1, "log": "Temporary failure in name resolution"}, "the network, which a capture has not"),
        ({"result": {"reason": "covered", "covered_ratio": 0.866, "networks": ["Encoder"]}}, "(Encoder) hold 87 %"),
        ({"result": {"reason": "no_forward"}}, "no network was called"),
        ({"result": {"reason": "step_limit"}}, "the CPU time of a capture ended before a whole step"),
        ({"result": {"reason": "export", "detail": "data-dependent\nmore", "trace": ""}}, "refused the network: data"),
        ({"result": {"reason": "export", "detail": SCRIPTED, "trace": ""}}, "torch.jit has compiled the network"),
        ({"result": {"reason": "export", "detail": "", "trace": ""}}, "torch.export refused the network"),
        (
            {"result": {"reason": "export", "detail": DEPENDS_ON_VALUES, "trace": ""}},
            "depends on the values that it is given (routed experts.py, line 11, in forward)",
        ),
        (
            {"result": {"reason": "export", "detail": DEPENDS_IN_TORCH, "trace": ""}},
            "depends on the values that it is given (graph net.py, line 10, in forward)",
        ),
    ],
)
def test_a_reason_is_one_sentence_with_a_remedy(facts: dict[str, Any], told: str) -> None:
    error = why_not(PLAN, outcome(**facts))
    assert told in error.message
    assert "\n" not in error.message
    assert error.remedy


def test_of_networks_that_are_not_seen_the_usual_cause_is_told() -> None:
    result = {"reason": "covered", "covered_ratio": 0.16, "networks": ["Sequential"]}
    assert "network.forward(x) is not seen" in why_not(PLAN, outcome(result=result)).remedy


@pytest.mark.parametrize("out", ["graph.txt", "train.onnx"])
def test_a_file_that_no_capture_has_written_is_left_alone(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("lr: 0.1\n")
    (tmp_path / "graph.txt").write_text("")
    with pytest.raises(InputError) as refused:
        target_files(Path(out), ["python", "train.py"])
    assert "--out" in refused.value.remedy


def test_what_a_sentence_tells_whole_is_not_told_by_a_traceback_as_well() -> None:
    result = {"reason": "export", "detail": DEPENDS_ON_VALUES, "trace": "Traceback (most recent call last)"}
    assert why_not(PLAN, outcome(result=result)).log == ""
    assert why_not(PLAN, outcome(result={**result, "detail": SCRIPTED})).log == ""
    assert why_not(PLAN, outcome(result={**result, "detail": "no such operator"})).log


def test_of_a_long_log_the_end_is_shown_from_the_beginning_of_a_line() -> None:
    log = why_not(PLAN, outcome(has_stepped=False, log="".join(f"line {number}\n" for number in range(2_000)))).log
    assert log.startswith("line ")
    assert log.endswith("line 1999\n")
    assert 3_900 < len(log) <= 4_000


def test_a_notebook_is_told_from_a_script() -> None:
    plan = dataclasses.replace(PLAN, command=["python", "-u", "my work.ipynb"])
    error = why_not(plan, outcome(status=1, log="NameError: name 'null' is not defined\n"))
    assert error.message.endswith("my work.ipynb is a notebook, and no script")
    assert error.remedy == "make a script of it: jupyter nbconvert --to script 'my work.ipynb'"


def test_what_was_meant_for_a_shell_says_so() -> None:
    plan = dataclasses.replace(PLAN, command=["DATA=/data", "python", "x.py"])
    error = why_not(plan, outcome(status=NO_PROGRAM_STATUS, log="cannot start DATA=/data: No such file or directory\n"))
    assert "it is a variable" in error.remedy


def test_a_file_that_lies_where_the_script_does_is_said_to(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "conf.json").touch()
    plan = dataclasses.replace(PLAN, command=["python", "src/train.py"], directory=tmp_path)
    log = "FileNotFoundError: [Errno 2] No such file or directory: '{}'\n"
    error = why_not(plan, outcome(status=1, log=log.format("../conf.json")))
    assert (
        error.remedy == f"start it as train.py from there: cd {tmp_path / 'src'}; submit: --workdir {tmp_path / 'src'}"
    )
    assert f"is not there from {tmp_path}, but is from {tmp_path / 'src'}" in error.message
    for missed in ("../absent.json", "/absent.json", "", "x" * 300):
        assert "--workdir" not in why_not(plan, outcome(status=1, log=log.format(missed))).remedy
