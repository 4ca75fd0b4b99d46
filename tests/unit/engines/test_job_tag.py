"""What users of another engine write into a comment."""

from __future__ import annotations

import pytest

from cotenant.engines.job_tag import JobTag, read_tag
from cotenant.engines.slurm.gres import Gres, read_gres
from cotenant.engines.slurm.node_lists import expand_nodes
from cotenant.engines.slurm.values import number_of, text_of, words_of
from tests.support.cases import for_each


@for_each("line", ["", "   ", "my job", "cotenants memory=1GiB", "x cotenant"])
def test_other_comments_are_none_of_our_business(line: str) -> None:
    assert read_tag(line) is None


def test_a_line_says_what_a_job_needs() -> None:
    line = "cotenant memory=8GiB utilization=0.4 slowdown=0.1 share=any "
    line += f"max_slowdown=0.5 graph={'ab' * 32} batch=64 steps=9"
    assert read_tag(line) == JobTag(
        graph_sha256="ab" * 32,
        global_batch_size=64,
        steps_total=9,
        memory_bytes=8 * 2**30,
        utilization_ratio=0.4,
        slowdown_ratio=0.1,
        share="any",
        max_slowdown_ratio=0.5,
    )
    assert read_tag("cotenant") == JobTag()


@for_each(
    ("word", "complaint"),
    [
        ("memory=lots", "memory=lots is not a size such as 8GiB"),
        ("utilization=nan", "utilization=nan is not a ratio from 0 to 1"),
        ("utilization=1.5", "utilization=1.5 is not a ratio from 0 to 1"),
        ("batch=1e3", "batch=1e3 is not a count"),
        ("batch=" + "9" * 5_000, "is cut after 1,000"),
        ("graph=../../etc", "graph=../../etc is not a sha256"),
        ("share=always", "share=always is not never, safe or any"),
        ("memroy=1GiB", "'memroy' is unknown: did you mean 'memory'?"),
        ("=", "'' is unknown"),
    ],
)
def test_a_wrong_pair_is_left_out_and_complained_about(word: str, complaint: str) -> None:
    tag = read_tag(f"cotenant step_ms=5 {word}")
    assert tag is not None
    assert tag.step_ms == 5.0
    assert complaint in "; ".join(tag.complaints)


@for_each(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n1,n2", ("n1", "n2")),
        ("gpu[01-03,7],login", ("gpu01", "gpu02", "gpu03", "gpu7", "login")),
        ("rack[1-2]-a", ("rack1-a", "rack2-a")),
    ],
)
def test_short_forms_of_node_names_are_written_out(text: str, names: tuple[str, ...]) -> None:
    assert expand_nodes(text) == names


@for_each("text", ["n[1", "n1]", "n[1-99999999]", "n[a]", "n[1-2][3-4]", "n[-]", ",[", "n[1]x["])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        expand_nodes(text)


@for_each(
    ("text", "entries"),
    [
        ("gpu:g0:1,gpu:g1:1,shard:g0:4", [Gres("gpu", "g0", 1), Gres("gpu", "g1", 1), Gres("shard", "g0", 4)]),
        ("gpu:a100:2(IDX:1-2)", [Gres("gpu", "a100", 2, (1, 2))]),
        ("gres:gpu:g1:1", [Gres("gpu", "g1", 1)]),
        ("gres/gpu=2", [Gres("gpu", "", 2)]),
        ("gpu:4", [Gres("gpu", "", 4)]),
        ("nogpu:3,craynetwork:1", []),
        ("gpu:a100:2(IDX:0,2)", [Gres("gpu", "a100", 2, (0, 2))]),
        ("", []),
    ],
)
def test_parts_of_devices_are_read(text: str, entries: list[Gres]) -> None:
    assert read_gres(text) == entries


def test_values_are_read_in_the_forms_of_all_versions() -> None:
    newer = {
        "n": {"set": True, "infinite": False, "number": 7},
        "s": ["RUNNING", "COMPLETING"],
        "i": {"infinite": True},
    }
    assert (number_of(newer, "n"), number_of(newer, "i"), number_of({"n": float("nan")}, "n")) == (7, 0, 0)
    assert words_of(newer, "s") == words_of({"s": "running+COMPLETING"}, "s") == {"RUNNING", "COMPLETING"}
    assert (text_of({"t": None}, "t"), number_of({"n": "7"}, "n"), number_of({"n": -3}, "n")) == ("", 0, 0)
