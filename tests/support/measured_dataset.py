"""A small dataset of invented jobs whose true formulas are known: step = 1.7 x roofline, memory = 1.3 x counted."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from cotenant.graph_file import strip_weights
from cotenant.job_settings import JobSettings
from cotenant.profile_schema import PairRow, SoloRow, write_rows
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from predictor_service.features.job_features import build_features
from tests.support.onnx_graphs import absent_tensor

DEVICE = "cpu-standin"
STEP_FACTOR = 1.7
MEMORY_FACTOR = 1.3
FAMILIES = ("narrow", "medium", "wide", "deep", "shallow", "tall")
BATCHES = (8, 32, 128)
PAIR_BATCH = 32
_WIDTHS = {
    "narrow": [64, 32, 10],
    "medium": [256, 256, 10],
    "wide": [784, 1024, 10],
    "deep": [128] * 8 + [10],
    "shallow": [512, 10],
    "tall": [1024, 512, 256, 128, 10],
}
_WAITS = {"narrow": 0.0, "medium": 0.2, "wide": 0.0, "deep": 0.4, "shallow": 0.0, "tall": 0.3}


def dense_network(widths: list[int]) -> bytes:
    """Returns a chain of Gemm and Relu with a symbolic batch, weights stripped."""
    nodes, weights, name = [], [], "x"
    for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        weights.append(absent_tensor(f"w{index}", [inputs, outputs]))
        nodes.append(helper.make_node("Gemm", [name, f"w{index}"], [f"h{index}"]))
        nodes.append(helper.make_node("Relu", [f"h{index}"], [f"r{index}"]))
        name = f"r{index}"
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", widths[0]])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", widths[-1]])],
        initializer=weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return strip_weights(model.SerializeToString())


def graphs() -> dict[str, bytes]:
    """Returns the stripped graph of every family."""
    return {family: dense_network(_WIDTHS[family]) for family in FAMILIES}


def job_settings(family: str, batch: int) -> JobSettings:
    """Returns how the invented jobs of a family run."""
    return JobSettings(global_batch_size=batch, optimizer="adam", input_wait_ratio=_WAITS[family])


def write_dataset(folder: Path, seed: int = 0, noise: float = 0.02) -> None:
    """Writes solo.csv, pairs.csv and graphs/ of invented measurements.

    Args:
        folder: Made when absent.
        seed: Of the noise.
        noise: Standard deviation of the logarithm of every measured figure.
    """
    random = np.random.default_rng(seed)
    (folder / "graphs").mkdir(parents=True)
    descriptions = {}
    for family, content in graphs().items():
        descriptions[family] = describe_graph(content)
        (folder / "graphs" / f"{hashlib.sha256(content).hexdigest()}.onnx").write_bytes(content)
    solo = [_solo_row(family, batch, descriptions[family], random, noise) for family in FAMILIES for batch in BATCHES]
    rows = {row.family: row for row in solo if row.batch == PAIR_BATCH}
    pairs = [_pair_row(rows[victim], rows[other], random, noise) for victim in FAMILIES for other in FAMILIES]
    write_rows(folder / "solo.csv", solo, SoloRow)
    write_rows(folder / "pairs.csv", pairs, PairRow)


def _solo_row(
    family: str, batch: int, description: GraphDescription, random: np.random.Generator, noise: float
) -> SoloRow:
    settings = job_settings(family, batch)
    features = build_features(description.at_batch(batch), settings, DEVICE_TYPES[DEVICE])
    step_ms, memory_bytes = (float(factor) for factor in np.exp(random.normal(0.0, noise, 2)))
    step_ms *= STEP_FACTOR * features.roofline_ms
    return SoloRow(
        schema_version=1,
        run_id=f"{family}-{batch}",
        campaign="invented",
        mode="train",
        device=DEVICE,
        host_memory_bytes=None,
        disk_read_bytes_per_s=None,
        network_bytes_per_s=None,
        driver="none",
        framework="none",
        share_mode="exclusive",
        job_key=settings.key(description.graph_sha256),
        graph_sha256=description.graph_sha256,
        architecture=family,
        family=family,
        batch=batch,
        input_shape=None,
        precision="fp32",
        optimizer="adam",
        input_wait_ratio=settings.input_wait_ratio,
        gpus=1,
        nodes=1,
        workers=None,
        servers=None,
        sub_batch=batch,
        sync_ms_mean=None,
        step_ms_mean=step_ms,
        step_ms_p50=step_ms,
        step_ms_p95=step_ms * 1.1,
        steps=100,
        utilization_ratio=0.95 * features.utilization_ceiling_ratio,
        sm_activity_ratio=None,
        dram_activity_ratio=None,
        memory_peak_bytes=int(memory_bytes * MEMORY_FACTOR * features.analytical_memory_bytes),
        memory_reserved_bytes=None,
        memory_context_bytes=0,
        power_watts=None,
        status="ok",
        quality_flags=(),
        features_json=None,
    )


def _pair_row(victim: SoloRow, other: SoloRow, random: np.random.Generator, noise: float) -> PairRow:
    """Jobs take turns; one with its copy, begun at one instant as campaigns begin them, is in phase with it."""
    wanted, by_other = victim.utilization_ratio or 0.0, other.utilization_ratio or 0.0
    met = wanted if victim is other else wanted * by_other
    shared = (1.0 + met) * float(np.exp(random.normal(0.0, noise)))
    step_ms = victim.step_ms_mean or 1.0
    return PairRow(
        run_id=f"{victim.family}-{other.family}",
        campaign="invented",
        device=DEVICE,
        share_mode="time_slicing",
        victim_job_key=victim.job_key,
        other_job_keys=(other.job_key,),
        victim_step_ms_mean=step_ms * shared,
        victim_solo_step_ms_mean=step_ms,
        slowdown_ratio=shared - 1.0,
        repeat=0,
        status="ok",
        quality_flags=(),
    )
