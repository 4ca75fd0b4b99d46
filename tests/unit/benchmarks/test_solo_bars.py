"""What of a benchmark can be asked for by name."""

from __future__ import annotations

import pytest

from benchmarks.solo_bars import UnknownPartError, check_part
from tests.support.cases import for_each


@for_each("only", ["", "cnn", "mlp", "miso", "step_time", "rows_without_a_graph"])
def test_what_the_page_names_is_judged(only: str) -> None:
    check_part(only)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        UnknownPartError, match=r"nothing judged is named 'memory'; there are: utilization, cnn.*step_time"
    ):
        check_part("memory")
