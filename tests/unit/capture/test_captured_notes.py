"""What of a captured script is not as it looks is told in one sentence each."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.capture import captured_notes
from tests.unit.capture.test_captured_job import RESULT


def test_a_batch_from_which_on_the_network_decides_otherwise_is_told() -> None:
    (note,) = captured_notes.notes_of({**RESULT, "batch_most": 63}, 0.0)
    assert "from batch 64 on" in note


def test_numbers_that_are_read_off_inputs_are_told_with_their_lines() -> None:
    (note,) = captured_notes.notes_of({**RESULT, "is_batch_fixed": True, "read_numbers": ["pool.py:48"]}, 0.0)
    assert "pool.py:48" in note
    assert "FIXED_BATCH" in note
    assert "for another batch capture the script with that batch" in note
    assert "x.shape" not in note  # it would not help


@pytest.mark.parametrize("loaded", [0, 16])
def test_rows_of_which_several_are_a_sample_are_told_once(loaded: int) -> None:
    (note,) = captured_notes.notes_of({**RESULT, "loaded_batch_size": loaded, "indexed_samples": 16}, 0.0)
    assert "16 samples" in note
    assert "--batch-size counts rows here" in note


@pytest.mark.parametrize(
    ("found", "is_told"),
    [({}, True), ({"precision": "bf16"}, False), ({"has_gpu": True}, False), ({"cuda_asked": False}, False)],
)
def test_mixed_precision_that_is_off_without_a_gpu_is_told_with_the_flag_that_states_it(
    found: dict[str, Any], is_told: bool
) -> None:
    told = captured_notes.notes_of({**RESULT, "switched_off": True, "cuda_asked": True, **found}, 0.0)
    assert any("--precision fp16" in note for note in told) is is_told
