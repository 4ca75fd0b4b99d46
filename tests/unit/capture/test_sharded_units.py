"""How much of sharded weights is whole at once: two units that pass, and all that stay."""

from __future__ import annotations

from torch import nn

from cotenant.capture.in_script.sharded_units import gathered_ratio


def network(blocks: int = 8) -> nn.Sequential:
    """Blocks of 100 weights each between two layers of 100 and 100."""
    return nn.Sequential(*(nn.Linear(10, 10, bias=False) for _ in range(blocks + 2)))


def test_blocks_pass_one_by_one_and_what_only_the_outermost_unit_has_stays() -> None:
    net = network()
    calls = [([block], False) for block in list(net)[1:-1]] + [([net], False)]
    assert gathered_ratio(calls) == 0.4  # two blocks and the two layers that no block has, of ten


def test_a_network_that_is_wrapped_as_a_whole_is_whole_at_once() -> None:
    assert gathered_ratio([([network()], False)]) == 1.0


def test_blocks_without_a_unit_around_them_all_stay() -> None:
    assert gathered_ratio([([block], False) for block in network()]) == 1.0


def test_what_asks_to_stay_whole_between_its_passes_does() -> None:
    net = network()
    calls = [([block], place < 3) for place, block in enumerate(list(net)[1:-1])] + [([net], False)]
    assert gathered_ratio(calls) == 0.7


def test_several_networks_of_one_call_are_one_unit_and_shared_weights_count_once() -> None:
    net = network()
    net[1].weight = net[2].weight
    calls = [([net[1], net[2]], False), ([net[3]], False), ([net], False)]
    assert gathered_ratio(calls) == 1.0
    assert gathered_ratio([([net[3], net[4]], False), ([net[5]], False), ([net[6]], False), ([net], False)]) == 0.889


def test_nothing_in_parts_is_no_share() -> None:
    assert gathered_ratio([]) == 0.0
    assert gathered_ratio([([nn.ReLU()], False)]) == 0.0
