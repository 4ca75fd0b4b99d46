"""docs/notebook.md keeps its word: its lines run from a trace to a plot, and it names every argument."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant_simulator.comparison.options import Options

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "notebook.md").read_text()
TO_A_PLOT, OWN_POLICY = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def notebook(folder: Path) -> Iterator[dict[str, Any]]:
    """Run the page in an empty folder next to the examples, and return its variables."""
    (folder / "examples").symlink_to(ROOT / "examples")
    variables: dict[str, Any] = {"__name__": "notebook"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MPLBACKEND", "Agg")
        patch.setenv("MPLCONFIGDIR", str(folder))
        for part in (TO_A_PLOT, OWN_POLICY):
            exec(compile(part, "docs/notebook.md", "exec"), variables)
        yield variables
        variables["plot"].close("all")


def test_the_page_leads_from_a_trace_to_a_plot_in_ten_lines(notebook: dict[str, Any], folder: Path) -> None:
    assert len([line for line in TO_A_PLOT.splitlines() if line]) <= 10
    assert (folder / "policies.png").read_bytes().startswith(b"\x89PNG")
    stay = notebook["stay"]
    assert stay.index.tolist() == ["fifo", "sjf", "sjf_bsbf"]
    assert (stay.ratio_low <= stay.ratio).all()
    assert stay.ratio["sjf_bsbf"] < 1
    assert notebook["own"].runs.policy.tolist() == ["sjf", "NewestFirst"] * 5
    assert notebook["own"].runs.query("policy == 'sjf'").jct_mean_s.nunique() > 1, (
        "seeds that change nothing teach nothing"
    )


def test_the_page_names_every_argument_and_column() -> None:
    last = PAGE.rpartition("`simulate` takes")[2]
    assert set(re.findall(r"`(\w+)`", last)) - {"flag"} == set(Options.__dataclass_fields__)


def test_the_page_names_figures_that_there_are(notebook: dict[str, Any]) -> None:
    rows = dict(re.findall(r"^\| `found\.(\w+)` \| [^|]+ \| (.*) \|$", PAGE, re.MULTILINE))
    for name, text in rows.items():
        assert set(re.findall(r"`(\w+)`", text)) <= set(getattr(notebook["found"], name).columns)
    assert set(rows) == {"policies", "runs", "jobs"}
