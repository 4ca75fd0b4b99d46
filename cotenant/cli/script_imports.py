"""What a script and the modules that lie next to it say of it: whether it imports torch, and cuts its batches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

SCRIPT_BYTES_MAX: Final = 1 << 20
FILES_MAX: Final = 64
"""Of a project with more modules than these the others are not looked at."""
_TORCH: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+|import[ \t]+(?:[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*,[ \t]*){0,20})"
    r"(?:torch|lightning|pytorch_lightning|transformers|accelerate)\b",
    re.M,
)
_CUT: Final = re.compile(
    r"COTENANT_(?:SUB_BATCH|ACCUMULATION_STEPS)\b|\bsub_batch(?:es)?\(|\bjob\.accumulation_steps\("
)
"""How a script learns in how many passes it is to make a step: `cotenant/job.py`, or the variables."""
_FROM: Final = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[\w \t,]*)", re.M)
_IMPORT: Final = re.compile(r"^[ \t]*import[ \t]+([\w. \t,]+)", re.M)


def imports_torch(script: Path, folder: Path) -> bool:
    """Reads a script, then what it imports of its own project; nothing is run.

    Args:
        script: Its file; what is no Python file imports nothing.
        folder: Where it is started, which is where `python -m` looks for modules.
    """
    return any(_TORCH.search(text) for text in _texts(script, folder))


def cuts_batches(script: Path, folder: Path) -> bool:
    """Reads the same; whether any of it asks in how many passes it is to make a step."""
    return any(_CUT.search(text) for text in _texts(script, folder))


def _texts(script: Path, folder: Path) -> Iterator[str]:
    waiting, seen = [script], {script}
    while waiting:
        file = waiting.pop(0)
        text = _read(file)
        yield text
        for found in _imported_files(text, file, (script.parent, folder)):
            if found not in seen and len(seen) < FILES_MAX:
                seen.add(found)
                waiting.append(found)


def _read(file: Path) -> str:
    try:
        if file.suffix != ".py" or not file.is_file() or file.stat().st_size > SCRIPT_BYTES_MAX:
            return ""
        return file.read_text(encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError):
        return ""


def _imported_files(text: str, file: Path, folders: Iterable[Path]) -> Iterator[Path]:
    for dots, name, members in _FROM.findall(text):
        places = [file.parents[min(len(dots), len(file.parents)) - 1]] if dots else folders
        for place in places:
            module = place.joinpath(*name.split(".")) if name else place
            yield from _files_of(module)
            for member in re.findall(r"\w+", members):
                yield from _files_of(module / member)
    for names in _IMPORT.findall(text):
        for name in names.split(","):
            words = name.split()
            for place in folders if words else ():
                yield from _files_of(place.joinpath(*words[0].split(".")))


def _files_of(module: Path) -> Iterator[Path]:
    for file in (module.parent / f"{module.name}.py", module / "__init__.py"):
        if file.is_file():
            yield file
