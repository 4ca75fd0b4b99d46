"""Untouched scripts are captured: settings right, work right, nothing left behind; else a sentence says why not."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cotenant_profiler.convert_command import convert

from cotenant import programs
from cotenant.capture.captured_job import CapturedJob, capture_script
from cotenant.capture.reasons import NotCapturedError, OverlayRefusedError
from cotenant.graph_file import read_graph
from predictor_service.features.graphs.graph_description import describe_graph
from tests.support.checkpointed_strangers import CHECKPOINTED_STRANGERS
from tests.support.gpu_strangers import GPU_STRANGERS
from tests.support.library_strangers import LIBRARY_STRANGERS, python_for
from tests.support.stranger_scripts import STRANGERS as PLAIN_STRANGERS
from tests.support.unusual_strangers import UNUSUAL_STRANGERS

STRANGERS = {
    **PLAIN_STRANGERS, **CHECKPOINTED_STRANGERS, **UNUSUAL_STRANGERS, **LIBRARY_STRANGERS, **GPU_STRANGERS,
}  # fmt: skip
# In every run: a shell around the script, half precision with accumulation on a GPU that is not there, two networks.
EVERY_TIME = ("shell_wrapper", "accumulation_scaler", "encoder_decoder")
CAPTURED = [name for name, stranger in STRANGERS.items() if stranger.settings]
FIXED = ("shape_from_numbers",)
REFUSED = [name for name, stranger in STRANGERS.items() if not stranger.settings]
CONVERTED_AS_EVER = "shell_wrapper"
QUICK_REFUSALS = ("no_model",)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def converted_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converts in this process but for one script: a process of its own spends seconds on importing torch."""
    if request.node.callspec.params["name"] == CONVERTED_AS_EVER:
        return

    def run(verb: str, arguments: list[str], **named: object) -> subprocess.CompletedProcess[str]:
        Path(arguments[2]).write_bytes(convert(Path(arguments[0])))
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(programs, "run_captured", run)


def marked(names: list[str], every_time: tuple[str, ...]) -> list[object]:
    return [pytest.param(name, marks=[] if name in every_time else [pytest.mark.strangers]) for name in names]


def folder_hash(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(str(path.relative_to(folder)).encode())
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()


def capture(name: str, folder: Path) -> CapturedJob:
    command = STRANGERS[name].command(python_for(STRANGERS[name]), folder / f"{name}.py")
    before = folder_hash(folder)
    try:
        return capture_script(command, directory=folder, environment={"OMP_NUM_THREADS": "1"})
    except OverlayRefusedError as error:
        pytest.skip(error.message)
    finally:
        assert folder_hash(folder) == before, "the capture left something behind"


def by_hand(name: str, folder: Path) -> bytes:
    """As docs/training_scripts.md says, by the script's own `make`."""
    network, args, kwargs = load(folder / f"{name}.py").make()
    size = (*args, *kwargs.values())[0].shape[0]

    def spec(tensor: torch.Tensor) -> dict[int, object]:
        return {0: torch.export.Dim("batch", min=1)} if name not in FIXED else {}

    shapes = inspect.signature(network.forward).bind(*args, **kwargs).arguments
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network.eval(),
            args,
            kwargs=kwargs,
            dynamo=True,
            optimize=False,
            dynamic_shapes={name: spec(tensor) for name, tensor in shapes.items()},
            verbose=False,
        )
    assert program is not None
    assert size > 1
    program.save(str(folder / "by_hand.onnx"), external_data=True)
    return read_graph(folder / "by_hand.onnx")


BY_HAND_ELSEWHERE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
network, args, kwargs = __import__(sys.argv[2]).make()
shapes = tuple({0: torch.export.Dim("batch", min=1)} for _ in args)
torch.export.save(torch.export.export(network.eval(), args, kwargs, dynamic_shapes=shapes), sys.argv[3])
"""


def by_hand_elsewhere(name: str, folder: Path) -> bytes:
    """The same in the environment that has the script's library, and converted in ours, which has not."""
    export = folder / "by_hand.pt2"
    arguments = [python_for(STRANGERS[name]), "-c", BY_HAND_ELSEWHERE, str(folder), name, str(export)]
    subprocess.run(arguments, check=True, capture_output=True)
    return convert(export)


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", marked(CAPTURED, EVERY_TIME))
def test_a_script_is_captured_as_it_trains_and_leaves_nothing_behind(
    name: str, tmp_path: Path, converted_here: None
) -> None:
    job = capture(name, tmp_path)
    assert (job.batch_size, job.optimizer, job.precision, job.accumulation) == STRANGERS[name].settings
    assert job.activation_checkpointing == STRANGERS[name].recomputes
    assert job.covered_ratio == 1
    if STRANGERS[name].has_one_network:
        wanted_graph = (by_hand_elsewhere if STRANGERS[name].library else by_hand)(name, tmp_path)
        found, wanted = (describe_graph(graph).at_batch(job.batch_size) for graph in (job.graph, wanted_graph))
        assert found.forward_macs == pytest.approx(wanted.forward_macs, rel=0.01)
        assert found.parameter_bytes == wanted.parameter_bytes


@pytest.mark.parametrize("name", marked(REFUSED, QUICK_REFUSALS))
def test_a_script_without_a_whole_network_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotCapturedError, match=r"^not captured: ") as refused:
        capture(name, tmp_path)
    assert STRANGERS[name].refusal in refused.value.message
    assert refused.value.remedy


@pytest.mark.strangers
def test_a_script_that_never_steps_is_captured_when_its_time_is_over(tmp_path: Path) -> None:
    loop = "while True:\n    net(torch.randn(9, 4)).sum().backward()\n"
    (tmp_path / "slow.py").write_text(f"import torch\nnet = torch.nn.Linear(4, 4)\n{loop}")
    job = capture_script([sys.executable, "slow.py"], directory=tmp_path, environment={}, isolated=False, cpu_s=8)
    assert (job.batch_size, job.accumulation) == (9, None)


@pytest.mark.strangers
def test_without_an_overlay_a_shell_does_not_come_to_its_next_command(tmp_path: Path) -> None:
    command = STRANGERS["shell_wrapper"].command(sys.executable, tmp_path / "train.py")
    assert capture_script(command, directory=tmp_path, environment={}, isolated=False).batch_size == 6
    assert not (tmp_path / "second_command").exists()
