from __future__ import annotations

from cotenant_agent.attempts.exit_classes import classify, describe
from cotenant_agent.records import ExitFacts
from tests.support.cases import for_each

TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n    ~~~~^^\n'
    '  File "train.py", line 2, in main\n    raise\n'
)
OOM_TEXT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@for_each(
    ("facts", "expected"),
    [
        (ExitFacts(return_code=0), "done"),
        (ExitFacts(return_code=0, cause="fenced"), "fenced"),
        (ExitFacts(return_code=0, cause="preempted"), "stopped"),
        (ExitFacts(return_code=85, cause="fenced", checkpoint_is_new=True), "fenced"),
        (ExitFacts(return_code=-9, oom_kills=1), "host_oom"),
        (ExitFacts(return_code=1, log_tail=OOM_TEXT), "gpu_oom"),
        (ExitFacts(return_code=1, reported_failure="gpu_oom"), "gpu_oom"),
        (ExitFacts(return_code=85, cause="gpu_oom", checkpoint_is_new=True), "gpu_oom"),
        (ExitFacts(return_code=-15, cause="cancelled", log_tail=OOM_TEXT), "stopped"),
        (ExitFacts(return_code=85, cause="preempted", checkpoint_is_new=True), "checkpointed"),
        (ExitFacts(return_code=85, cause="preempted"), "stopped"),
        (ExitFacts(return_code=85), "error"),
        (ExitFacts(return_code=-15, cause="preempted"), "stopped"),
        (ExitFacts(return_code=1, log_tail="NVRM: Xid (PCI:0000:01:00): 79"), "gpu_fault"),
        (ExitFacts(return_code=1, log_tail="an illegal memory access was encountered"), "gpu_fault"),
        (ExitFacts(return_code=1, log_tail="NCCL timeout on rank 3"), "communication"),
        (ExitFacts(return_code=-11), "signal"),
        (ExitFacts(return_code=2), "error"),
        (ExitFacts(return_code=None), "lost"),
    ],
)
def test_the_first_reason_that_holds_names_the_end(facts: ExitFacts, expected: str) -> None:
    assert classify(facts) == expected


def test_a_claimed_checkpoint_without_a_manifest_is_explained() -> None:
    facts = ExitFacts(return_code=85, cause="preempted")
    assert "no checkpoint manifest newer than the request" in describe(classify(facts), facts)


def test_a_signal_is_named() -> None:
    assert "SIGSEGV" in describe("signal", ExitFacts(return_code=-11))


@for_each(
    ("code", "tail", "expected"),
    [
        (127, "/a b/run.sh: line 3: nvidia-smii: command not found\n", "exit code 127: nvidia-smii: command not found"),
        (127, "done\nsh: 1: trainier: not found\n", "exit code 127: trainier: not found"),
        (
            127,
            "/usr/bin/env: 'pyhton': No such file or directory\n",
            "exit code 127: 'pyhton': No such file or directory",
        ),
        (
            127,
            "run.sh: Zeile 3: foo: Kommando nicht gefunden.\n",
            "exit code 127: a command was not found, as shells say it",
        ),
        (127, "", "exit code 127: a command was not found, as shells say it"),
        (
            127,
            "cotenant: cannot start /x/y: [Errno 8] Exec format error\n",
            "exit code 127: /x/y: [Errno 8] Exec format error",
        ),
        (126, "./run.sh: line 2: ./loop.py: Permission denied\n", "exit code 126: ./loop.py: Permission denied"),
        (126, "bash: ./loop: Is a directory\n", "exit code 126: ./loop: Is a directory"),
        (126, "", "exit code 126: a command cannot be executed, as shells say it"),
        (
            1,
            f"{TRACEBACK}ImportError: IProgress not found\nException ignored in: <function tqdm.__del__ at 0x7>\n"
            f"{TRACEBACK}AttributeError: no attribute 'disp'\n",
            "exit code 1: ImportError: IProgress not found",
        ),
        (
            1,
            "ModuleNotFoundError: No module named 'tqdm'\n",
            "exit code 1: ModuleNotFoundError: No module named 'tqdm'",
        ),
        (
            1,
            "lr? Traceback\nEOFError: EOF when reading a line\n",
            "exit code 1: it asked for input, and a job has no standard input; give it as arguments or in a file",
        ),
        (
            1,
            '  File "/x/train.py", line 3\n    print 1\n    ^^^^^^^\nSyntaxError: Missing parentheses in call\n',
            "exit code 1: SyntaxError: Missing parentheses in call",
        ),
        (
            1,
            f'{TRACEBACK}  File "/x/train.py", line 3, in <module>\n    name = sys.argv[1]\n           ~~~~~~~~^^^\n'
            "IndexError: list index out of range\n",
            "exit code 1: IndexError: list index out of range: it looked for an argument that its command has not: "
            "write it behind the script",
        ),
        *(
            (
                1,
                f"{TRACEBACK}  File {place}, in __getitem__\n{raised}KeyError: 'DATA_ROOT'\n",
                "exit code 1: DATA_ROOT is not set; of your shell's variables a job has those of --env only: "
                "--env DATA_ROOT=VALUE",
            )
            for place, raised in (
                ('"<frozen os>", line 679', ""),
                ('"/usr/lib/python3.9/os.py", line 679', "    raise KeyError(key) from None\n"),
            )
        ),
        (1, f"{TRACEBACK}KeyError: 'DATA_ROOT'\n", "exit code 1: KeyError: 'DATA_ROOT'"),  # of a dictionary
        (1, "/usr/bin/python3: No module named speach\n", "exit code 1: python3: No module named speach"),
        (1, "ModuleNotFoundError: No module named 'tqdm'\nstopping\n", "exit code 1"),
        (
            1,
            f"{TRACEBACK}FloatingPointError: loss is nan at step 30\n",
            "exit code 1: FloatingPointError: loss is nan at step 30",
        ),
        (1, f"{TRACEBACK}RuntimeError: sizes of a:\n\tsize 3\n", "exit code 1: RuntimeError: sizes of a:"),
        (1, f"{TRACEBACK}queue.Empty\n", "exit code 1: queue.Empty"),
        (1, f"{TRACEBACK}{TRACEBACK}lab.Diverged: at 7", "exit code 1: lab.Diverged: at 7"),
        (1, f"{TRACEBACK}ValueError: {'x' * 900}\n", f"exit code 1: ValueError: {'x' * 200}"),
        (1, f"{TRACEBACK}ValueError: caught\nlogged, going on\n", "exit code 1"),
        (1, "ValueError: as somebody prints it\n", "exit code 1"),
        (
            2,
            "usage: train.py [-h] outdir\ntrain.py: error: the following arguments are required: outdir\n",
            "exit code 2: error: the following arguments are required: outdir",
        ),
        (2, "train.py: error: none of that\nstopping\n", "exit code 2"),
        (1, "train.py: error: loss too high\n", "exit code 1"),
        (
            1,
            f"{TRACEBACK}RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 896 vs 854\n",
            "exit code 1: torch.save could not write its file whole, as where a disk or a quota is full: RuntimeError: "
            "[enforce fail at inline_container.cc:672] . unexpected pos 896 vs 854",
        ),
        (
            137,
            "step 3\n",
            "exit code 137: a command was ended by SIGKILL, as shells say it: often for lack of host memory",
        ),
        (139, "", "exit code 139: a command was ended by SIGSEGV, as shells say it"),
        (200, "", "exit code 200"),
        (1, "run.sh: line 3: foo: command not found\n", "exit code 1"),
    ],
)
def test_what_a_program_could_not_start_is_named(code: int, tail: str, expected: str) -> None:
    facts = ExitFacts(return_code=code, log_tail=tail)
    assert describe(classify(facts), facts) == expected


def test_a_stopped_job_lacks_no_command() -> None:
    facts = ExitFacts(return_code=127, cause="cancelled")
    assert describe(classify(facts), facts) == "exit code 127 after a stop (cancelled)"
