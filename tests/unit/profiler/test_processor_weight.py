from __future__ import annotations

import os
from pathlib import Path

import pytest
from cotenant_profiler.processor_weight import raised_weight


@pytest.mark.parametrize(
    ("membership", "parent", "weight"),
    [
        ("4:memory:/\n3:cpu,cpuacct:/jobs/a\n0::/\n", "cpu/jobs/a", ("cpu.shares", "262144")),
        ("0::/user.slice\n", "user.slice", ("cpu.weight", "10000")),
    ],
)
def test_a_group_of_our_own_gets_the_highest_weight_and_takes_workers_in(
    tmp_path: Path, membership: str, parent: str, weight: tuple[str, str]
) -> None:
    (tmp_path / "mount" / parent).mkdir(parents=True)
    (tmp_path / "membership").write_text(membership)
    with raised_weight(mount=tmp_path / "mount", membership=tmp_path / "membership") as group:
        assert group.folder is not None
        assert group.folder.parent == tmp_path / "mount" / parent
        assert (group.folder / weight[0]).read_text() == weight[1]
        group.add(os.getpid())
        assert (group.folder / "cgroup.procs").read_text() == str(os.getpid())


def test_a_machine_that_permits_nothing_is_measured_without_a_group(tmp_path: Path) -> None:
    with raised_weight(mount=tmp_path / "absent") as group:
        group.add(os.getpid())
    assert group.folder is None
    assert "unchanged" in group.description


def test_nothing_is_touched_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    with raised_weight(enabled=False, mount=tmp_path):
        assert list((tmp_path / "cpu").iterdir()) == []
