"""Which job a process belongs to, where it prints, and what its owner told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_agent.observing.foreign_jobs import ForeignJobs
from cotenant_agent.observing.job_owners import owner_of
from cotenant_agent.observing.ray_workers import RayOrigin, origin_by_log, submission_of
from tests.support.cases import for_each

UID = "0a1b2c3d-1111-2222-3333-444455556666"
CONTAINER = "ab" * 32


@for_each(
    ("cgroups", "owner"),
    [
        ("4:devices:/slurm_n1/uid_1000/job_77/step_0/task_0\n1:name=systemd:/\n", "slurm/77"),
        ("0::/system.slice/slurmstepd.scope/job_12/step_batch/user/task_special", "slurm/12"),
        ("0::/system.slice/n1_slurmstepd.scope/job_12/step_0", "slurm/12"),
        (f"0::/kubepods/burstable/pod{UID}/{CONTAINER}", f"kubernetes/{UID}"),
        (
            f"0::/kubepods.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice/cri.scope",
            f"kubernetes/{UID}",
        ),
        (f"0::/docker/{CONTAINER}", "docker/abababababab"),
        (f"0::/system.slice/docker-{CONTAINER}.scope", "docker/abababababab"),
        (f"0::/machine.slice/libpod-{CONTAINER}.scope/container", "podman/abababababab"),
        (f"5:devices:/libpod_parent/libpod-{CONTAINER}\n", "podman/abababababab"),
        (f"0::/machine.slice/libpod-conmon-{CONTAINER}.scope", ""),
        ("0::/user.slice/user-1000.slice/session-3.scope", ""),
        ("0::/user.slice/job_77", ""),
        ("0::/slurm_n1/uid_x/job_77", ""),
        ("", ""),
        ("0::/" + "slurm" * 100_000, ""),
    ],
)
def test_a_control_group_names_the_job(cgroups: str, owner: str) -> None:
    assert owner_of(cgroups) == owner


def process(
    proc: Path,
    pid: int,
    *,
    cgroup: str = "0::/\n",
    group: int = 9,
    parent: int = 1,
    log: Path | None = None,
    environ: str = "",
) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cgroup").write_text(cgroup)
    (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} {group} {group} 0")
    (folder / "environ").write_text(environ)
    if log is not None:
        (folder / "fd" / "1").symlink_to(log)


def test_processes_of_one_job_are_one_job_and_others_are_told_apart_by_their_group(tmp_path: Path) -> None:
    slurm = "0::/system.slice/slurmstepd.scope/job_5/step_0\n"
    process(tmp_path, 10, cgroup=slurm)
    process(tmp_path, 11, cgroup=slurm)
    process(tmp_path, 12, group=12)
    process(tmp_path, 13, group=13)
    process(tmp_path, 14, group=0)  # a thread of the kernel
    found = ForeignJobs(tmp_path).find({"g0": frozenset({10, 11, 12}), "g1": frozenset({13, 14, 99})})
    assert [(job.job_id, job.pids, job.gpu_ids) for job in found] == [
        ("group/12", (12,), ("g0",)),
        ("group/13", (13,), ("g1",)),
        ("slurm/5", (10, 11), ("g0",)),
    ]


def test_a_group_is_told_from_an_earlier_one_of_its_number_and_hidden_output_is_no_silence(tmp_path: Path) -> None:
    process(tmp_path, 12, group=12)
    with (tmp_path / "12" / "stat").open("a") as stat:
        stat.write(" 0" * 14 + " 4711 0\n")
    process(tmp_path, 13, group=13)
    (tmp_path / "13" / "fd").rmdir()
    found = ForeignJobs(tmp_path).find({"g0": frozenset({12, 13})})
    assert [(job.job_id, job.began_ticks, job.is_hidden) for job in found] == [
        ("group/12", 4711, False),
        ("group/13", 0, True),
    ]


AHEAD = "RAY_RAYLET_PID=10\0A=1\0RAY_JOB_ID=ffffffff"
"""The variables of a worker that Ray started before there was a job, as a node of Ray 2.60 had them."""


def worker(
    proc: Path,
    pid: int,
    *,
    job: str = "",
    actor: str = "",
    environ: str = AHEAD,
    parent: int = 10,
    cgroup: str = "0::/\n",
) -> None:
    """Make a worker of Ray whose log begins as Ray lets it begin."""
    log = proc / "logs" / f"worker-{'ab' * 28}-ffffffff-{pid}.out"
    log.parent.mkdir(exist_ok=True)
    lines = (f":job_id:{job}\n" if job else "") + (f":actor_name:{actor}\n" if actor else "")
    log.write_text(f"{lines}step 1/9\n")
    process(proc, pid, group=9, parent=parent, log=log, environ=environ, cgroup=cgroup)


def found_in(proc: Path, users: dict[str, set[int]]) -> list[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    jobs = ForeignJobs(proc).find({gpu_id: frozenset(pids) for gpu_id, pids in users.items()})
    return [(job.job_id, job.pids, job.gpu_ids) for job in jobs]


def test_workers_are_jobs_of_their_own_named_after_their_job_of_ray_and_keep_their_children(tmp_path: Path) -> None:
    known = "RAY_RAYLET_PID=10\0A=1\0RAY_JOB_ID=0a000000"
    pod = f"0::/kubepods/burstable/pod{UID}/{CONTAINER}"
    process(tmp_path, 10, group=9, cgroup=pod)
    for pid, parent in ((11, 10), (12, 10), (13, 12), (14, 13)):
        process(tmp_path, pid, group=9, parent=parent, cgroup=pod, environ=known)
    assert found_in(tmp_path, {"g0": {11, 12}, "g1": {14}}) == [
        ("ray/0a000000.11", (11,), ("g0",)),
        ("ray/0a000000.12", (12, 14), ("g0", "g1")),
    ]


def test_what_a_worker_prints_begins_with_its_job_where_it_was_started_before_there_was_one(tmp_path: Path) -> None:
    worker(tmp_path, 11, job="02000000", actor="Trainer")
    worker(tmp_path, 12, job="03000000")
    worker(tmp_path, 13)
    process(tmp_path, 14, group=9, parent=12, environ=AHEAD)
    assert found_in(tmp_path, {"g0": {11, 13, 14}}) == [
        ("ray/02000000.11", (11,), ("g0",)),
        ("ray/03000000.12", (14,), ("g0",)),
        ("ray/13", (13,), ("g0",)),
    ]


def test_a_submitted_program_and_what_it_starts_has_the_name_of_its_submission(tmp_path: Path) -> None:
    # Ray takes its own variables off the program that it starts for a submission, and adds this one.
    environ = 'A=1\0RAY_JOB_CONFIG_JSON_ENV_VAR={"runtime_env": {}, "metadata": {"job_submission_id": "raysubmit_pSV"}}'
    worker(tmp_path, 11, job="01000000", actor="JobSupervisor")
    process(tmp_path, 12, group=12, parent=11, environ=environ)
    process(tmp_path, 13, group=13, parent=12, environ=environ)
    assert found_in(tmp_path, {"g0": {12, 13}}) == [("ray/raysubmit_pSV", (12, 13), ("g0",))]


@for_each(
    ("config", "submission"),
    [
        ('{"metadata": {"job_submission_id": "mine-1.a_b"}}', "mine-1.a_b"),
        ('{"runtime_env": {"env_vars": {"job_submission_id": "other"}}, "metadata": {}}', ""),
        ('{"metadata": {"job_submission_id": "../../slurm/7"}}', ""),
        ('{"metadata": {"job_submission_id": "a\\nb"}}', ""),
        ('{"metadata": {"job_submission_id": 7}}', ""),
        ('{"metadata": 7}', ""),
        ("[]", ""),
        ("{", ""),
        ("[" * 90_000, ""),
        ("x" * 200_000, ""),
    ],
)
def test_a_submission_is_named_by_what_ray_is_to_know_of_it(config: str, submission: str) -> None:
    assert submission_of(f"A=1\0RAY_JOB_CONFIG_JSON_ENV_VAR={config}\0B=2") == submission


def test_ranks_of_ray_train_on_gpus_of_their_own_are_one_job_of_which_a_predictor_learns_nothing(
    tmp_path: Path,
) -> None:
    tagged = f"{AHEAD}\0COTENANT_JOB=cotenant graph={'ab' * 32} batch=64"
    for pid, job in ((11, "02000000"), (12, "02000000"), (13, "04000000")):
        worker(tmp_path, pid, job=job, actor="RayTrainWorker", environ=tagged)
    worker(tmp_path, 14, job="02000000", actor="Trainer", environ=tagged)
    users = {"g0": frozenset({11, 13, 14}), "g1": frozenset({12})}
    jobs = ForeignJobs(tmp_path).find(users)
    assert [(job.job_id, job.pids, job.gpu_ids, job.tag is None) for job in jobs] == [
        ("ray/02000000", (11, 12), ("g0", "g1"), True),
        ("ray/02000000.14", (14,), ("g0",), False),
        ("ray/04000000.13", (13,), ("g0",), True),
    ]


def test_ranks_on_one_gpu_are_of_several_trainings_and_stay_apart(tmp_path: Path) -> None:
    for pid in (11, 12):
        worker(tmp_path, pid, job="02000000", actor="RayTrainWorker")
    assert found_in(tmp_path, {"g0": {11, 12}}) == [
        ("ray/02000000.11", (11,), ("g0",)),
        ("ray/02000000.12", (12,), ("g0",)),
    ]


@for_each(
    ("head", "origin"),
    [
        (":job_id:02000000\n:actor_name:A\n", RayOrigin(job="02000000")),
        (":job_id:02000000\n:task_name:train\n", RayOrigin(job="02000000")),
        (":job_id:02000000\n:actor_name:RayTrainWorker\n", RayOrigin(job="02000000", is_rank=True)),
        ("step 1\n:job_id:02000000\n", None),
        (":job_id:../slurm\n", None),
        (":job_id:02000000", None),
        ("", None),
    ],
)
def test_the_log_of_a_worker_tells_its_job(head: str, origin: RayOrigin | None) -> None:
    assert origin_by_log(head) == origin


@pytest.mark.parametrize(
    "environ",
    [
        "RAY_JOB_ID=01000000",
        "RAY_RAYLET_PID=10",
        "RAY_JOB_ID=../slurm\0RAY_RAYLET_PID=10",
        "RAY_JOB_ID=01000000\0RAY_RAYLET_PID=1 2",
        "XRAY_JOB_ID=01000000\0RAY_RAYLET_PID=10",
    ],
)
def test_what_only_looks_like_a_worker_of_ray_belongs_to_its_group(environ: str, tmp_path: Path) -> None:
    process(tmp_path, 11, group=7, parent=10, environ=environ)
    assert [job.job_id for job in ForeignJobs(tmp_path).find({"g0": frozenset({11})})] == ["group/7"]


def test_workers_that_are_each_others_parents_end_the_search(tmp_path: Path) -> None:
    for pid, parent in ((11, 12), (12, 11)):
        process(tmp_path, pid, parent=parent, environ="RAY_JOB_ID=01000000\0RAY_RAYLET_PID=10")
    assert len(ForeignJobs(tmp_path).find({"g0": frozenset({11})})) == 1


def test_a_log_is_a_regular_file_and_a_tag_is_ours(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.touch()
    process(tmp_path, 10, group=10, log=log, environ=f"A=1\0COTENANT_JOB=cotenant graph={'ab' * 32} batch=8\0B=2")
    process(tmp_path, 11, group=11, log=Path("/dev/null"), environ="COTENANT_JOB=something else")
    process(tmp_path, 12, group=12, log=tmp_path / "gone (deleted)", environ="XCOTENANT_JOB=cotenant")
    found = {job.job_id: job for job in ForeignJobs(tmp_path).find({"g0": frozenset({10, 11, 12})})}
    assert found["group/10"].log == log
    assert found["group/10"].tag is not None
    assert found["group/10"].tag.global_batch_size == 8
    assert [(found[name].log, found[name].tag) for name in ("group/11", "group/12")] == [(None, None)] * 2


def test_the_log_of_a_container_is_its_own_file_where_the_machine_has_one_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, ours = tmp_path / "proc", tmp_path / "train.log"
    ours.write_text("step 99/100\n")
    process(proc, 10, group=10, log=ours)
    theirs = proc / "10" / "root" / str(ours).lstrip("/")
    theirs.parent.mkdir(parents=True)
    theirs.write_text("step 1/100\n")
    opened = proc / "10" / "fd" / "1"
    opened.unlink()
    opened.symlink_to(theirs)
    # The kernel's link names the file as its process does, and leads to the one that is open.
    monkeypatch.setattr(Path, "readlink", lambda _: ours)
    assert ForeignJobs(proc).find({"g0": frozenset({10})})[0].log == theirs
