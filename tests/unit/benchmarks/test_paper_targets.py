"""What the papers print, as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers.targets import TargetError, read_targets


def test_every_target_names_its_place_and_has_values_with_a_unit_or_an_order() -> None:
    targets = read_targets()
    assert {"sjf-bsbf", "horus"} <= {target.paper for target in targets}
    for target in targets:
        assert target.place
        assert bool(target.order) != bool(target.values and target.unit)


def test_no_place_says_two_things_about_one_quantity_in_one_setting() -> None:
    places = [(target.paper, target.place, target.setting, target.quantity) for target in read_targets()]
    assert len(set(places)) == len(places)


def test_the_table_of_240_jobs_is_as_printed() -> None:
    (found,) = (t for t in read_targets("sjf-bsbf") if t.place == "Table III" and t.setting == "240 jobs, all")
    assert found.unit == "h"
    assert found.values["sjf_bsbf"] == 1.01
    assert found.values["tiresias"] == 1.51


@pytest.mark.parametrize(
    ("text", "learning_task"),
    [
        ('place = "Table 1"\nquantity = "q"\nunit = "h"\nvalues = { a = 1 }', "no paper"),
        ('paper = "p"\nquantity = "q"\nunit = "h"\nvalues = { a = 1 }', "no place"),
        ('paper = "p"\nplace = "x"\nquantity = "q"\nvalues = { a = 1 }', "without a unit"),
        ('paper = "p"\nplace = "x"\nquantity = "q"', "either values or an order"),
        ('paper = "p"\nplace = "x"\nquantity = "q"\norder = ["a", "a"]', "two different"),
        ('paper = "p"\nplace = "x"\nquantity = "q"\nunit = "h"\nvalues = { a = [2, 1] }', "upside down"),
        ('paper = "p"\nplace = "x"\nquantity = "q"\nunit = "h"\nvalues = { a = true }', "not a number"),
        ('paper = "p"\nfigure = 1', "unknown 'figure'"),
    ],
)
def test_an_entry_without_a_meaning_is_refused(tmp_path: Path, text: str, learning_task: str) -> None:
    file = tmp_path / "targets.toml"
    file.write_text(f"[[target]]\n{text}\n", encoding="utf-8")
    with pytest.raises(TargetError, match=learning_task):
        read_targets(path=file)
