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
    r"(?:torch|torchvision|torch_geometric|lightning|pytorch_lightning|transformers|accelerate|trl|ultralytics"
    r"|sentence_transformers|stable_baselines3|fastai|monai|mmengine|detectron2|skorch|unsloth)\b",
    re.M,
)
"""torch, and libraries whose scripts often import nothing else of it."""
_CUT: Final = re.compile(
    r"COTENANT_(?:SUB_BATCH|ACCUMULATION_STEPS)\b|\bsub_batch(?:es)?\(|\w(?<!\bself)\.accumulation_steps\("
    r"|^[ \t]*from[ \t]+[\w.]*job[ \t]+import[ \t]*(?:\([^)]{0,2000}|[^#\n]{0,2000})"
    r"\b(?:sub_batch(?:es)?|accumulation_steps)\b",
    re.M,
)
"""How a script learns in how many passes it is to make a step: `cotenant/job.py`, or the variables."""
_HELPER: Final = re.compile(r"^def sub_batches\(", re.M)
"""Of `cotenant/job.py` and its copies, which could cut a batch for a script that asks them for nothing but progress."""
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
    own, *imported = _texts(script, folder)
    return any(_CUT.search(text) for text in (own, *(text for text in imported if not _HELPER.search(text))))


def read_text(file: Path) -> str:
    """Reads a file of 1 MiB at most, whatever it is; empty = it cannot be read, or is larger."""
    try:
        if not file.is_file() or file.stat().st_size > SCRIPT_BYTES_MAX:
            return ""
        return file.read_text(encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError):
        return ""


def _texts(script: Path, folder: Path) -> Iterator[str]:
    waiting, seen = [script], {script}
    while waiting:
        file = waiting.pop(0)
        text = read_text(file) if file.suffix == ".py" else ""
        yield text
        for found in _imported_files(text, file, (script.parent, folder)):
            if found not in seen and len(seen) < FILES_MAX:
                seen.add(found)
                waiting.append(found)


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
