"""Nouns agree with the number in front of them."""

from __future__ import annotations

from cotenant.counted_nouns import agreed
from tests.support.cases import for_each


@for_each(
    ("written", "shown"),
    [
        ("1 GPU(s)", "1 GPU"), ("0 GPU(s)", "0 GPUs"), ("11 task(s) cancelled", "11 tasks cancelled"),
        ("1 free GPU(s) are kept", "1 free GPU is kept"), ("3 free GPU(s) are kept", "3 free GPUs are kept"),
        ("1 of 2 GPU(s) faulty", "1 of 2 GPUs faulty"), ("2 worker(s) of 1 CPU core(s)", "2 workers of 1 CPU core"),
        ("0.5 CPU core(s) each", "0.5 CPU cores each"), ("an unknown number GPU(s)", "an unknown number GPUs"),
        ("standin-local-1 has 1 usable one(s)", "standin-local-1 has 1 usable one"), ("no mark", "no mark"),
    ],
)  # fmt: skip
def test_a_marked_noun_is_singular_behind_a_one_only(written: str, shown: str) -> None:
    assert agreed(written) == shown
