"""What the witness of gangs has written down, and whether anything of it was lost, doubled or done by half a gang."""

from __future__ import annotations

from pathlib import Path


def lines_of(folder: Path, job_id: str, rank: int) -> list[list[str]]:
    """What a rank has written down."""
    return [line.split() for line in (folder / f"{job_id}.{rank}.journal").read_text().splitlines()]


def check_gang(folder: Path, job_id: str, *, ranks: int, steps: int) -> None:
    """Every start goes on from a sum that fits its step, the end has it all, and no rank ran twice or alone."""
    for rank in range(ranks):
        lines = lines_of(folder, job_id, rank)
        assert not [line for line in lines if line[0] == "twice"], f"{job_id}: rank {rank} ran twice at once"
        starts = [line for line in lines if line[0] == "start"]
        assert all(int(line[3]) == 3 * int(line[2]) for line in starts), f"{job_id}: {starts}"
        fences = [int(line[1]) for line in starts]
        assert fences == sorted(set(fences)), f"{job_id}: fences of rank {rank} repeat"
        # A rank that has come to the end does so again where another one was killed just before its own.
        assert {line[2] for line in lines if line[0] == "end"} == {str(3 * steps)}, f"{job_id}: ends of rank {rank}"
        assert lines[-1][:2] == ["end", str(max(map(int, fences)))], f"{job_id}: rank {rank} did not end last"
    done = [[line[1:] for line in lines_of(folder, job_id, rank) if line[0] == "step"] for rank in range(ranks)]
    last = {fence: [int(step) for one, step in done[0] if one == fence][-1] for fence, _ in done[0]}
    for fence, step in done[1]:
        # They step together: a rank is never more than the step ahead that the other one dies in.
        assert int(step) <= last.get(fence, 0) + 1 or fence not in last, f"{job_id}: rank 1 went on alone in {fence}"
