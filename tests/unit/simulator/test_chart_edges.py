"""Numbers at the right edge of a chart are inside of it on a phone too, where letters are as large again."""

from __future__ import annotations

import re

from cotenant_simulator.report.charts import WIDTH, Line, chart

LETTER_OF_A_PHONE = 12
"""Width of a digit in 20 px, the size that the page gives small screens."""


def test_no_number_reaches_beyond_the_edge() -> None:
    drawn = chart([Line(name="fifo", points=[(0.0, 0.0), (100.0, 1.0)])], across="jobs (%)", up="difference (h)")
    found = re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="(\w+)">([\d,.]+)</text>', drawn)
    assert "100" in [text for _, _, text in found]
    for x, side, text in found:
        assert float(x) + (side == "middle") * len(text) * LETTER_OF_A_PHONE / 2 <= WIDTH, text
