"""What a script's text, and that of the modules beside it, say of it before it runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cotenant import job
from cotenant.cli.submit_capture import is_torch_script, takes_whole_batch

TORCH = "import torch\n"
CUTTING = "from cotenant import job\nparts = job.sub_batches(batch)\n"
HELPER = Path(job.__file__).read_text()


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch\n", True),
        ("import argparse, time as t, torch\n", True),
        ("import argparse, torchless\n", False),
        ("    from transformers import x\n", True),
        ("from stable_baselines3 import PPO\n", True),
        ("import os\nfrom ultralytics import YOLO\n", True),
        ("from trl import SFTTrainer\n", True),
        ("\ufeffimport torch\r\n", True),  # as editors on Windows save it
        ("import torchless\n", False),
        ("", False),
    ],
)
def test_a_script_is_known_by_its_imports(text: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    assert is_torch_script(["/usr/bin/python3.11", "train.py"], tmp_path) is expected


@pytest.mark.parametrize(
    ("words", "files", "expected"),
    [
        (["src/main.py"], {"src/main.py": "import engine.loop\n", "src/engine/loop.py": TORCH}, True),
        (["-m", "own.main"], {"own/main.py": "from .loop import (\n    fit,\n)\n", "own/loop.py": TORCH}, True),
        (["main.py"], {"main.py": "from own import a", "own/a.py": "from .. import net", "net.py": TORCH}, True),
        (["main.py"], {"main.py": "from own import a", "own/a.py": "from . import net", "net.py": TORCH}, False),
        (["main.py"], {"main.py": "import b", "b.py": "import main, absent\nfrom ....... import far\n"}, False),
    ],
)  # fmt: skip
def test_what_a_script_imports_of_its_own_project_is_looked_into(
    words: list[str], files: dict[str, str], expected: bool, tmp_path: Path
) -> None:
    write_files(tmp_path, files)
    assert is_torch_script(["python", *words], tmp_path) is expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["python", "-u", "train.py"], True),
        (["python3", "-u", "-OO", "train.py", "--lr", "1"], True),
        (["python", "-m", "pack.train"], True),
        (["python", "-u", "-m", "pack"], True),
        (["python", "-m", "absent"], False),
        (["python", "-m"], False),
        (["python", "-c", "train.py"], False),
        (["python", "-I", "train.py"], False),
        (["python", "-u"], False),
        (["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1"], True),
        (["/venv/bin/accelerate", "launch", "train.py", "other.py"], True),
        (["accelerate", "launch", "other.py", "train.py"], False),
        (["torchrun", "--nnodes=2", "train.py"], False),
        (["torchrun", "-m", "pack.train"], False),
        (["python", "-W", "ignore", "-Xdev", "-X", "faulthandler", "train.py"], True),
        (["python", "-W"], False),
        (["python", "pack"], True),
        (["./train.py", "3"], True),
        (["./absent.py"], False),
        (["uv", "run", "--with", "numpy", "train.py"], True),
        (["/usr/bin/poetry", "run", "python", "-u", "-m", "pack"], True),
        (["conda", "run", "-n", "own", "torchrun", "--standalone", "train.py"], True),
        (["nohup", "nice", "-n", "10", "python3.12", "train.py"], True),
        (["nohup", "python", "-c", "train.py"], False),
        (["uv", "run", "pytest"], False),
        (["uv"], False),
        (["python", "-m", "kept.train"], True),
        (["python", "kept/train.py"], False),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"], True),
        (["python", "-m", "torch.distributed.launch", "--nnodes=2", "train.py"], False),
        (["mpirun", "-n", "2", "python", "train.py"], False),
        (["python"], False),
        ([], False),
    ],
)
def test_a_script_behind_flags_of_python_and_a_module_are_looked_into(
    words: list[str], expected: bool, tmp_path: Path
) -> None:
    for folder in ("pack", "src/kept"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("train.py", "pack/train.py", "pack/__main__.py", "src/kept/network.py"):
        (tmp_path / name).write_text("import torch\n")
    (tmp_path / "src/kept/train.py").write_text("from kept.network import Network\n")
    assert is_torch_script(words, tmp_path) is expected


@pytest.mark.parametrize(
    ("words", "files", "expected"),
    [
        (["python", "train.py"], {"train.py": TORCH}, True),
        (["python", "train.py"], {"train.py": "from cotenant import job\nparts = job.sub_batches(batch)\n"}, False),
        (["python", "train.py"], {"train.py": "import loop\n", "loop.py": "from job import sub_batch\n"}, False),
        (["python", "train.py"], {"train.py": "from cotenant.job import (\n  report,\n  sub_batches as cut)\n"}, False),
        (["python", "train.py"], {"train.py": "from own_job import accumulation_steps\n"}, False),
        (["python", "train.py"], {"train.py": "from settings import accumulation_steps\n"}, True),
        (["python", "train.py"], {"train.py": "import job as j\npasses = j.accumulation_steps()\n"}, False),
        (["python", "train.py"], {"train.py": "passes = self.accumulation_steps()\n"}, True),
        (["python", "train.py"], {"train.py": "print(f'{sub_batch} {accumulation_steps}')\n"}, True),
        (["python", "train.py"], {"train.py": "import job\njob.report(1)\n", "job.py": HELPER}, True),
        (["python", "train.py"], {"train.py": "import job\njob.sub_batches(x)\n", "job.py": HELPER}, False),
        (["python", "train.py"], {"train.py": HELPER + "sub_batches(x)\n"}, False),
        (["python", "train.py"], {"train.py": "import loop\n", "loop.py": "size = job.sub_batch(64)\n"}, False),
        (["torchrun", "train.py"], {"train.py": "size = os.environ['COTENANT_SUB_BATCH']\n"}, False),
        (["python", "-m", "own"], {"own/__main__.py": "passes = job.accumulation_steps()\n"}, False),
        (["python", "train.py"], {"train.py": "accumulation_steps = 4\nsub_batch = batch[:4]\n"}, True),
        (["python", "train.py", "--sub-batch", "{sub_batch}"], {"train.py": TORCH}, False),
        (["python", "train.py", "--passes={accumulation_steps}"], {}, False),
        (["bash", "-c", "python train.py --micro $COTENANT_SUB_BATCH"], {}, False),
        (["bash", "run.sh"], {}, True),
        (["bash", "run.sh"], {"run.sh": "python train.py --part $COTENANT_SUB_BATCH\n"}, False),
        (["bash", "run.sh"], {"run.sh": "exec python -u train.py\n", "train.py": CUTTING}, False),
        (["bash", "run.sh"], {"run.sh": "exec python -u train.py\n", "train.py": TORCH}, True),
        (["bash", "-c", "python -m own.train"], {"own/train.py": CUTTING}, False),
        (["bash", "-c", "python -m own.train"], {"src/own/train.py": CUTTING}, False),
        (["python", "train.py", "--config=run.yaml"], {"run.yaml": "part: ${oc.env:COTENANT_SUB_BATCH}\n"}, False),
        (["torchrun", "--nnodes=2", "train.py"], {"train.py": CUTTING}, False),
        (["torchrun", "-m", "own.train"], {"own/train.py": CUTTING}, False),
        (["mpirun", "-n", "2", "python", "-I", "train.py"], {"train.py": CUTTING}, False),
        (["deepspeed", "train.py"], {"train.py": CUTTING}, False),
        (["./absent"], {}, True),
    ],
)  # fmt: skip
def test_a_batch_is_taken_whole_where_no_text_asks_in_how_many_passes_it_is_to_be_taken(
    words: list[str], files: dict[str, str], expected: bool, tmp_path: Path
) -> None:
    write_files(tmp_path, files)
    assert takes_whole_batch(words, tmp_path) is expected


@pytest.mark.parametrize("text", ["a" * 900_000, "a.py " * 180_000, "from job import (" * 50_000, "-m " * 300_000])
def test_what_a_large_file_names_is_looked_for_in_time_that_grows_with_its_size(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(text)
    (tmp_path / "train.py").write_text(text)
    begin_s = time.process_time()
    takes_whole_batch(["bash", "run.sh"], tmp_path)
    takes_whole_batch(["python", "train.py"], tmp_path)
    assert time.process_time() - begin_s < 20.0  # some tenths; with the square of the size it is hours
