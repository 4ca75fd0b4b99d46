"""The default name of a job: after the script that it runs, not after the program that runs the script."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

NAME_CHARACTERS_MAX: Final = 63
_NAMELESS: Final = "job"
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SCRIPT: Final = re.compile(r".+\.(?:py|pyc|pyz|sh|bash|zsh|ipynb|jl|pl|rb|R|lua)", re.IGNORECASE | re.DOTALL)
_MODULE: Final = re.compile(r"[A-Za-z_][\w.]*")
_INTERPRETER: Final = re.compile(r"(?:python|pypy)[0-9.]*w?|(?:ba|da|z|k)?sh|julia|perl|ruby|Rscript|lua")
# Run something else: its own words come first, then the command.
_WRAPPERS: Final = frozenset(
    {
        "env", "nohup", "nice", "ionice", "time", "timeout", "stdbuf", "setsid", "taskset", "numactl", "sudo", "srun",
        "mpirun", "mpiexec", "torchrun", "accelerate", "deepspeed", "horovodrun", "conda", "mamba", "micromamba", "uv",
        "poetry", "pipenv", "pdm", "hatch", "nsys", "ncu",
    }
)  # fmt: skip
_LAUNCHING_MODULES: Final = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner",
     "cProfile", "pdb", "coverage", "runpy"}
)  # fmt: skip
# Of interpreters: what follows such a word belongs to it.
_TAKES_A_WORD: Final = frozenset({"-W", "-X", "-o", "--check-hash-based-pycs", "--rcfile", "--init-file"})
_TAKES_A_PROGRAM: Final = frozenset({"-c", "-e", "-lc", "-ic", "-ec", "-xc"})


def name_of(command: Sequence[str]) -> str:
    """Returns the name of a job after its command: `python train.py` is train, `python -m pack.age` pack.age.

    Always 1 to 63 letters, digits, `.`, `_` or `-`, whatever the command is.
    """
    words = list(command)
    while words and _ASSIGNMENT.fullmatch(words[0]):
        del words[0]
    return _as_name(_script(words)) or _as_name(PurePath(words[0]).name if words else "") or _NAMELESS


def _script(words: Sequence[str]) -> str:
    """The words' script or module without what runs it; the program itself where there is none."""
    if not words:
        return ""
    program = PurePath(words[0]).name
    if _INTERPRETER.fullmatch(program):
        return _run_by_interpreter(program, words[1:])
    if program in _WRAPPERS:
        return _run_by_wrapper(program, words[1:])
    return _stem(words[0])


def _run_by_interpreter(program: str, words: Sequence[str]) -> str:
    skipped = False
    for number, word in enumerate(words):
        if skipped:
            skipped = False
        elif word == "-m" and program.startswith(("python", "pypy")):
            return _module(words[number + 1 :]) or program
        elif word in _TAKES_A_PROGRAM or word == "-":
            return program
        elif word in _TAKES_A_WORD:
            skipped = True
        elif not word.startswith("-"):
            return _stem(word) or program
    return program


def _module(words: Sequence[str]) -> str:
    if not words:
        return ""
    if words[0] in _LAUNCHING_MODULES:
        return _run_by_wrapper(words[0].rpartition(".")[2], words[1:])
    return words[0].removesuffix(".__main__")


def _run_by_wrapper(program: str, words: Sequence[str]) -> str:
    """Words of wrappers differ too much to be read: an interpreter, a module or a script among them decides."""
    for number, word in enumerate(words):
        base = PurePath(word).name
        if _INTERPRETER.fullmatch(base) or base in _WRAPPERS:
            return _script(words[number:])
        following = words[number + 1 :]
        if word in {"-m", "--module"} and following and _MODULE.fullmatch(following[0]):
            return _module(following)
        if word.startswith(("./", "/")) or (_SCRIPT.fullmatch(word) and not word.startswith("-")):
            return _stem(word)
    return program


def _stem(word: str) -> str:
    path = PurePath(word)
    return path.stem if _SCRIPT.fullmatch(path.name) else path.name


def _as_name(text: str) -> str:
    """The nearest text that a name may be; empty where nothing is left."""
    # Letters without their marks: größe.py is grosse, not gr-e.
    plain = "".join(
        mark for mark in unicodedata.normalize("NFKD", text.replace("ß", "ss")) if not unicodedata.combining(mark)
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.")[:NAME_CHARACTERS_MAX].rstrip("-.")
