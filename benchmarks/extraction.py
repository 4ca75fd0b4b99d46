"""What understanding a graph costs: `python -m benchmarks.extraction` prints JSON.

CPU seconds, best of five. The cold figures parse, check, infer and count ResNet-50 (written by hand, 175 operators)
with nothing cached; the warm one answers another batch from the stored description. The pool's figure adds the CPU
time of its worker processes to that of this one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from predictor_service.features.graphs.extraction_pool import ExtractionPool
from predictor_service.features.graphs.graph_description import describe_graph
from tests.support.onnx_graphs import bert_base, resnet50

REPEATS = 5
WARM_CALLS = 1_000


def best_cpu_s(work: Callable[[], object], cpu_s: Callable[[], float] = time.process_time) -> float:
    """Smallest CPU time of several runs, seconds."""
    spent_s = []
    for _ in range(REPEATS):
        start_s = cpu_s()
        work()
        spent_s.append(cpu_s() - start_s)
    return min(spent_s)


def processes_cpu_s(pids: frozenset[int]) -> float:
    """CPU time of this process and of others, seconds; their part in ticks of the kernel's clock."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main() -> dict[str, object]:
    """Measures everything; seconds."""
    resnet, bert = resnet50().SerializeToString(), bert_base().SerializeToString()
    description = describe_graph(resnet)
    with ExtractionPool(workers=1) as pool:
        pool.describe(resnet)
        pids = pool.worker_pids
        pooled_s = best_cpu_s(lambda: [pool.describe(resnet) for _ in range(5)], lambda: processes_cpu_s(pids)) / 5
    warm_s = best_cpu_s(lambda: [description.at_batch(batch) for batch in range(1, WARM_CALLS + 1)]) / WARM_CALLS
    return {
        "unit": "CPU seconds, best of 5",
        "cold_resnet50_in_process_s": best_cpu_s(lambda: describe_graph(resnet)),
        "cold_resnet50_in_pool_s": pooled_s,
        "cold_bert_base_in_process_s": best_cpu_s(lambda: describe_graph(bert)),
        "warm_resnet50_at_batch_s": warm_s,
        "target": {"cold_resnet50_in_process_s": 0.040},
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
