"""Pages for the browser share one style, which has a dark side, and hide no column on a phone."""

from __future__ import annotations

import re

import pytest
from cotenant_profiler.report import render_page

from cotenant.page_style import PAGE_STYLE
from cotenant_simulator.report.charts import WIDTH
from cotenant_simulator.report.gantt import gantt
from cotenant_simulator.report.html_document import document, table

PAGES = {"simulator": document("title", [table(("a", "b"), [("1", "2")])]), "profiler": render_page("title", [])}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_every_page_has_the_one_style_with_its_dark_side(page: str) -> None:
    assert page.count("<style>") == 1
    assert PAGE_STYLE in page
    light, dark = PAGE_STYLE.split("@media(prefers-color-scheme:dark)")
    names = [set(re.findall(r"(--[a-z]+):#", side)) for side in (light, dark)]
    assert names[0] == names[1] >= {"--text", "--paper"}
    # Whatever is not a picture is in one of these colours, so that nothing stays dark on dark.
    rules = [rule for rule in re.findall(r"([^{}]+)\{([^{}]*)\}", page) if ":root" not in rule[0]]
    assert [rule for rule in rules if re.search(r"(?:^|;)color:#", rule[1])] == []


@pytest.mark.parametrize(("columns", "is_wide"), [(2, False), (4, False), (5, True), (9, True)])
def test_a_table_that_no_phone_can_show_has_each_cell_behind_its_title(columns: int, is_wide: bool) -> None:
    titles = [f"title {number} <&'\"" for number in range(columns)]
    told = table(titles, [["text"] * columns])
    assert (" class=wide" in told) is is_wide
    assert len(re.findall(r'<td data-title="title \d &lt;&amp;&#x27;&quot;">text</td>', told)) == columns


def test_on_a_phone_the_rows_of_gpus_keep_their_size_and_are_moved_in_a_box_of_their_own() -> None:
    picture = gantt([], ["n0.0"], from_ms=0, until_ms=100)
    assert re.match(r'<div class="gantt"[^>]*><svg [^>]*>.*</svg></div>', picture)
    style = document("title", [picture]).partition("<style>")[2].partition("</style>")[0]
    (of_phones,) = [rules for rules in style.split("@media(max-width:600px)")[1:] if ".gantt" in rules]
    assert f".gantt svg{{width:{WIDTH}px;font-size:11px}}" in of_phones
    assert ".gantt{overflow-x:auto}" in of_phones
