"""What an export is to find as plain operators: bags of embeddings, and torch's own transformers."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

from typing import Any


def spell_out_transformers(torch: Any) -> Any:
    """Keeps torch's transformers from looking into a mask, and from one call for a whole layer that does not learn.

    Returns:
        What gives both back.
    """
    layers = torch.nn.modules.transformer
    detect = getattr(layers, "_detect_is_causal_mask", None)  # from 2.1 on
    switch: Any = getattr(torch.backends, "mha", None)  # from 2.3 on
    is_fast = switch is not None and switch.get_fastpath_enabled()
    if detect is not None:
        layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    if is_fast:
        switch.set_fastpath_enabled(False)

    def give_back() -> None:
        if detect is not None:
            layers._detect_is_causal_mask = detect
        if is_fast:
            switch.set_fastpath_enabled(True)

    return give_back


def look_up_bag(torch: Any, bag: Any, indices: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
    """What a bag of embeddings answers, one operator at a time."""
    rows = torch.nn.functional.embedding(indices, bag.weight)
    rows = rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(-1)
    if indices.dim() == 2:
        return rows.sum(1) if bag.mode == "sum" else rows.mean(1)
    begins = offsets[:-1] if bag.include_last_offset else offsets
    owners = torch.zeros_like(indices).index_add(0, begins, torch.ones_like(begins)).cumsum(0) - 1
    sums = rows.new_zeros(begins.shape[0], rows.shape[1]).index_add(0, owners, rows)
    if bag.mode == "sum":
        return sums
    counts = rows.new_zeros(begins.shape[0]).index_add(0, owners, rows.new_ones(rows.shape[0]))
    return sums / counts.clamp(min=1).unsqueeze(-1)
