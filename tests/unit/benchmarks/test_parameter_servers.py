"""Steps with parameter servers by hand: Eq. 3 and 4, the three placements of Fig. 10, stragglers, imbalance."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.papers.parameter_servers import NodeTasks, ServerTraining
from cotenant_simulator.truth.kinds import Kind
from tests.support.optimus_speeds import TABLE_2

EXCHANGE_ONLY = ServerTraining(
    is_synchronous=True,
    batch=1,
    sample_ms=0.0,
    fixed_ms=0.0,
    model_bytes=1.0,
    task_bytes_per_ms=1.0,
    update_ms=0.0,
    per_worker_ms=0.0,
    per_server_ms=0.0,
)


def of_table_2(synchrony: str) -> ServerTraining:
    """Table 2 in ms, with an exchange that takes the whole of its coefficient of workers / servers."""
    theta = next(values for name, values in TABLE_2.items() if name.value == synchrony)
    is_synchronous = synchrony == "synchronous"
    sample, fixed, over, per_worker, per_server = theta if is_synchronous else (0.0, *theta)
    return ServerTraining(
        is_synchronous=is_synchronous,
        batch=20,
        sample_ms=sample,
        fixed_ms=fixed,
        model_bytes=over / 2,
        task_bytes_per_ms=1.0,
        update_ms=0.0,
        per_worker_ms=per_worker,
        per_server_ms=per_server,
    )


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (4, 2), (20, 5), (20, 20)])
def test_remote_tasks_take_what_equations_3_and_4_say(workers: int, servers: int) -> None:
    w, p = workers, servers
    assert of_table_2("synchronous").remote_step_ms(w, p) == pytest.approx(
        1.02 * 20 / w + 2.78 + 4.92 * w / p + 0.00 * w + 0.02 * p
    )
    assert of_table_2("asynchronous").remote_step_ms(w, p) == pytest.approx(
        (2.83 + 3.92 * w / p + 0.00 * w + 0.11 * p) / w
    )


def test_more_servers_than_workers_do_not_shorten_what_a_worker_has_to_exchange() -> None:
    assert EXCHANGE_ONLY.remote_step_ms(1, 1) == EXCHANGE_ONLY.remote_step_ms(1, 4) == 2.0


@pytest.mark.parametrize(
    ("nodes", "amount"),
    [
        ([(1, 2), (3, 0)], 3),
        ([(1, 1), (1, 1), (2, 0)], 3),
        ([(2, 1), (2, 1)], 2),
    ],
)
def test_figure_10_the_longest_transfer_counts(nodes: list[tuple[int, int]], amount: int) -> None:
    """Two servers and four workers; one unit between each of them and each server at bandwidth 1, both ways."""
    two_servers = replace(EXCHANGE_ONLY, model_bytes=2.0)
    tasks = [NodeTasks(workers=workers, servers=servers) for workers, servers in nodes]
    assert two_servers.exchange_ms(tasks) == 2 * amount


def test_on_one_node_nothing_is_exchanged_and_every_further_node_costs() -> None:
    times = [EXCHANGE_ONLY.paired_step_ms(counts) for counts in ([6], [3, 3], [2, 2, 2], [1] * 6)]
    assert times[0] == 0.0
    assert all(fewer < more for fewer, more in pairwise(times))


def test_a_shared_link_and_a_full_server_lengthen_the_exchange_in_proportion() -> None:
    nodes = [NodeTasks(workers=2, servers=1), NodeTasks(workers=2, servers=1)]
    usual_ms = EXCHANGE_ONLY.exchange_ms(nodes)
    crowded = [replace(node, bandwidth_ratio=0.5) for node in nodes]
    assert EXCHANGE_ONLY.exchange_ms(crowded) == 2 * usual_ms
    assert replace(EXCHANGE_ONLY, imbalance_ratio=1.5).exchange_ms(nodes) == 1.5 * usual_ms


def test_a_straggler_holds_synchronous_workers_up_and_only_itself_among_asynchronous_ones() -> None:
    nodes, ratios = [NodeTasks(workers=4, servers=4)], (3.0, 1.0, 1.0, 1.0)
    waiting = replace(EXCHANGE_ONLY, fixed_ms=12.0)
    assert waiting.step_ms(nodes, computing_ratios=ratios) == 36.0
    alone = replace(waiting, is_synchronous=False)
    assert alone.step_ms(nodes) == pytest.approx(3.0)
    assert alone.step_ms(nodes, computing_ratios=ratios) == pytest.approx(1 / (3 / 12 + 1 / 36))


def test_a_kind_with_servers_takes_what_its_nodes_make_of_it() -> None:
    kind = Kind(step_ms_by_gpus={4: 99.0}, servers=EXCHANGE_ONLY)
    assert kind.placed_step_ms((2, 2)) == EXCHANGE_ONLY.paired_step_ms((2, 2))
    assert replace(kind, servers=None).placed_step_ms((2, 2)) == 99.0
