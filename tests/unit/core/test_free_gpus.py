"""Free GPUs for one job: the fullest node that suffices, else as few nodes as the view allows."""

from __future__ import annotations

from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.policies.placement.free_gpus import choose_free_gpus, free_by_kind_and_node
from tests.support.cases import for_each
from tests.support.scheduling import job, node, view

WIDTHS = (2, 1, 3, 1)


@for_each(
    ("gpus", "nodes_max", "found"),
    [
        (2, 1, ("n0.0", "n0.1")),
        (3, 1, ("n2.0", "n2.1", "n2.2")),
        (4, 1, None),
        (4, 2, ("n2.0", "n2.1", "n2.2", "n0.0")),
        (6, 2, None),
        (6, 3, ("n2.0", "n2.1", "n2.2", "n0.0", "n0.1", "n1.0")),
        (7, 0, ("n2.0", "n2.1", "n2.2", "n0.0", "n0.1", "n1.0", "n3.0")),
        (8, 0, None),
    ],
)
def test_a_job_takes_the_fullest_node_that_suffices_else_the_emptiest_ones_and_no_gpu_more_than_it_asks_for(
    gpus: int, nodes_max: int, found: tuple[str, ...] | None
) -> None:
    machines = [node(f"n{number}", width) for number, width in enumerate(WIDTHS)]
    seen = view(nodes=machines, nodes_per_job_max=nodes_max)
    (by_node,) = free_by_kind_and_node(seen).values()
    assert choose_free_gpus(Ledger(seen), job(gpus=gpus, global_batch_size=gpus), by_node) == found
