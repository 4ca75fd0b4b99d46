"""Which printed numbers count batches, of which an optimizer step may take several, and how many steps they are.

A loop over a loader counts its batches, and so does Lightning's bar. What counts out of the stated steps, and what is
called an update, an optimizer step or a global step, counts steps, as the bars of transformers and Accelerate do. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# Updates and optimizer steps are what is meant; of moves in an environment or parts of a batch one step has many.
_SURENESS = (
    (3, re.compile(r"(?i)\b(?:updates?|opt(?:im|imi[sz]er)?[_ ]?step)\W*$")),
    (2, re.compile(r"(?i)\bglobal[_ ]?step\W*$")),
    (0, re.compile(r"(?i)\b(?:env(?:ironment)?|micro|mini|sub|accum(?:ulation)?|inner)[_ -]?(?:step|batch|iter)\W*$")),
)
_SURE_RANK = 2
_EPOCH = re.compile(r"(?i)(?<![^\W\d_])epoch")
_BATCH = re.compile(r"(?i)\bbatch(?: idx)?$")


def rank_of_counter(label: str) -> int:
    """Returns how surely a number counts optimizer steps, by the words before it; higher is surer.

    Where a line shows several, as `update 12 grad_step 48` does under accumulation, the surest one counts.

    Args:
        label: The words.
    """
    return next((rank for rank, words in _SURENESS if words.search(label) is not None), 1)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """What is known of the batches that a job takes for one optimizer step.

    Attributes:
        batches: As it states or as was captured, at least 1; 1 = one, or not known.
        steps_total: Optimizer steps that it states; 0 = none.
    """

    batches: int = 1
    steps_total: int = 0

    def counts_batches(self, label: str, total: int) -> bool:
        """Whether a number counts batches of which several make a step.

        Args:
            label: Words before it.
            total: What is printed behind it; 0 = nothing.
        """
        if self.batches < 2 or rank_of_counter(label) >= _SURE_RANK:
            return False
        # As many epochs as batches make a step have as many steps as each has batches: there a total says nothing.
        if _BATCH.search(label) is not None or (total > 0 and _EPOCH.search(label) is not None):
            return True
        return 0 < total != self.steps_total > 0

    def steps(self, label: str, total: int, counted: int) -> int:
        """Returns the optimizer steps that a counter shows; the last one of each pass may take fewer batches.

        Args:
            label: Words before its numbers.
            total: Of one pass; 0 = not printed.
            counted: Of all passes, at least 0.
        """
        if not self.counts_batches(label, total):
            return counted
        passes, batches = divmod(counted, total) if total else (0, counted)
        return passes * self._steps_of_pass(total) + batches // self.batches

    def batches_of_loop(self, total: int) -> int:
        """Returns how far the numbers of a loop that shows each step may lie apart, where nothing names its unit.

        Args:
            total: Of the loop; one of all batches of the stated steps may show those of each step together.
        """
        return self.batches if total > 0 and self._steps_of_pass(total) == self.steps_total else 1

    def steps_of_epochs(self, epochs: int, total: int) -> int:
        """Returns the optimizer steps of whole epochs whose bars have that total."""
        return epochs * (total if total == self.steps_total else self._steps_of_pass(total))

    def _steps_of_pass(self, total: int) -> int:
        return -(-total // self.batches)


ONE_BATCH: Final = Accumulation()
