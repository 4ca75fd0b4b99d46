"""Every benchmark of a paper understands the same options."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from benchmarks.papers.command import SEEDS, print_parts


def reported(seeds: int, parts: Sequence[str]) -> dict[str, object]:
    return {"seeds": seeds, "parts": list(parts)}


@pytest.mark.parametrize(
    ("arguments", "seeds", "parts"),
    [
        ([], SEEDS, ["b", "a"]),
        (["--seeds", "3", "--parts", "a"], 3, ["a"]),
        (["--seeds", "0"], 1, ["b", "a"]),
    ],
    ids=["all of it", "one part", "never without a seed"],
)
def test_a_benchmark_prints_the_parts_that_were_asked_for(
    capsys: pytest.CaptureFixture[str], arguments: list[str], seeds: int, parts: list[str]
) -> None:
    print_parts("What it prints.", ("b", "a"), reported, arguments)
    assert json.loads(capsys.readouterr().out) == {"seeds": seeds, "parts": parts}


def test_a_part_that_does_not_exist_is_refused_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        print_parts("What it prints.", ("b", "a"), reported, ["--parts", "c"])
    assert "choose from 'a', 'b'" in capsys.readouterr().err
