"""The slowdowns of all GPUs at once against those of each GPU by itself, for one to four jobs on a GPU."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import Assignment
from scheduler_service.core.sharing.colocation_slowdown import expected_slowdown
from scheduler_service.policies.packing.opportunistic_memory import Demand
from scheduler_service.policies.packing.packing_arrays import PackingArrays
from scheduler_service.policies.packing.packing_rules import FREE_MEMORY_RULES
from tests.support.cases import for_each
from tests.support.scheduling import DEVICE, GIB, job, memory, node, pair, pending, prediction, running, store, view

KEYS = [f"key-{index}" for index in range(5)]
ROUNDS = 3


def random_view(generator: random.Random, way: DeviceSharing) -> SchedulingView:
    """Six GPUs with up to three jobs each; some pairs and some jobs are not predicted."""
    known = store(
        [prediction(key, memory=memory(1), utilization_ratio=generator.uniform(0, 1.2)) for key in KEYS[1:]],
        [
            pair(one, two, generator.uniform(-0.1, 0.4), sharing=way)
            for one in KEYS
            for two in KEYS
            if generator.random() < 0.8
        ],
    )
    known.share(DEVICE, way)
    machine = node("n0", 6)
    holding = [
        running(job(f"{gpu.gpu_id}-{index}", key=generator.choice(KEYS)), [gpu.gpu_id])
        for gpu in machine.gpus
        for index in range(generator.randrange(4))
    ]
    waiting = [pending(job(f"new-{number}")) for number in range(ROUNDS)]
    return view(nodes=[machine], holding=holding, waiting=waiting, predictions=known)


def incoming_job(generator: random.Random, name: str) -> Resident:
    return Resident(request=job(name, key=generator.choice(KEYS)), micro_batch_size=1, memory_reserved_bytes=GIB)


@pytest.mark.parametrize("way", [DeviceSharing.TIME_SLICING, DeviceSharing.MPS])
@for_each("seed", range(40), always=15)
def test_arrays_say_of_every_set_of_jobs_what_the_formula_says(seed: int, way: DeviceSharing) -> None:
    generator = random.Random(seed)
    seen = random_view(generator, way)
    ledger = Ledger(seen)
    some_gpu = next(iter(seen.gpus.values())).gpu
    arrays = PackingArrays(ledger, some_gpu, FREE_MEMORY_RULES, lambda _: Demand(compute_ratio=0.0, base_ratio=0.0))
    for round_number in range(ROUNDS):
        worker = incoming_job(generator, f"new-{round_number}")
        found = arrays.colocation_slowdowns(worker)
        assert found is not None
        assert found.keys() >= {gpu_id for gpu_id in seen.gpus if ledger.residents(gpu_id)}
        for gpu_id, (own_ratio, ratios) in found.items():
            there = ledger.residents(gpu_id)
            expected = [
                expected_slowdown(
                    victim, [one for one in (worker, *there) if one is not victim], some_gpu, seen.predictions
                )
                for victim in (worker, *there)
            ]
            in_arrays = [own_ratio, *ratios[: len(there)]]
            assert np.allclose(in_arrays, [one.ratio for one in expected], rtol=1e-12, atol=1e-15)
        gpu_id = generator.choice(list(seen.gpus))
        ledger.place(worker, [Assignment(gpu_id=gpu_id)])
        arrays.place(worker, [gpu_id])
