"""One reason per job: about this job, and not an invitation to share where nothing is large enough."""

from __future__ import annotations

from cotenant.access.callers import Caller
from cotenant.access.roles import Role
from cotenant.v1 import scheduling_pb2
from scheduler_service.core import events, queue_events
from scheduler_service.core.decisions import Decision
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.reasons.reason_remedies import REMEDIES, name_whom_to_ask
from scheduler_service.core.records import MemoryPoint, Reason, Share
from scheduler_service.grpc_api.jobs.job_reasons import present_remedy, reported_reason
from scheduler_service.grpc_api.jobs.log_requests import log_nodes
from scheduler_service.grpc_api.jobs.translate_jobs import job_message, reason_message
from tests.support.engine_play import Play
from tests.support.scheduling import GIB, all_pairs, explained, node, prediction


def play_of(*names: str, policy: str = "horus", gib: float = 2.0, in_domain: bool = False) -> Play:
    """One GPU of 16 GiB with a job that holds it, and others whose predictions are outside of the domain."""
    play = Play(policy)
    play.submit("first", key="first", graph="g", share=Share.ANY, memory_request_bytes=GIB)
    play.tell(events.PredictionArrived, prediction=prediction("first"))
    play.tell(events.PairPredictionsArrived, pairs=all_pairs(["first"]))
    point = MemoryPoint(memory_bytes=int(gib * GIB), memory_bytes_upper_99=int(gib * GIB))
    for name in names:
        play.submit(name, key="big", graph="g")
    play.tell(events.PredictionArrived, prediction=prediction("big", memory={1: point, 32: point}, in_domain=in_domain))
    play.tell(events.PairPredictionsArrived, pairs=all_pairs(["first", "big"]))
    return play


def reported(play: Play, job_id: str, *, is_explained: bool) -> Reason:
    state = play.engine.state
    decision: Decision = explained(play.engine, job_id) if is_explained else state.decisions[job_id]
    return reported_reason(state, state.jobs[job_id], decision.reason)


def remedy(play: Play, job_id: str, *, role: Role | None = None) -> str:
    state = play.engine.state
    return present_remedy(state, state.jobs[job_id], reported(play, job_id, is_explained=True), Caller(role=role))


def test_what_fits_nowhere_is_never_advised_to_share() -> None:
    for policy in ("horus", "sjf_ffs", "sjf_bsbf"):
        play = play_of("big-1", policy=policy, gib=17)
        for is_explained in (False, True):
            message = reason_message(reported(play, "big-1", is_explained=is_explained))
            assert message.code == "MEMORY_LIKELY_EXCEEDS_GPU", (policy, message.message)
            assert "17.00 GiB" in message.message
            assert "smaller batch or a larger GPU" in message.message
        state = play.engine.state
        assert job_message(state, state.jobs["big-1"]).reason.code == "MEMORY_LIKELY_EXCEEDS_GPU"
        [candidate] = explained(play.engine, "big-1").candidates
        assert "share: any" not in reason_message(candidate.reason).message


def test_what_fits_is_advised_to_share_as_before() -> None:
    reason = reported(play_of("big-1"), "big-1", is_explained=True)
    assert reason.code == "OUT_OF_DOMAIN"


def test_an_equal_jobs_reason_is_worded_for_this_job() -> None:
    play = play_of("big-1", "big-2", "big-3")
    for name in ("big-1", "big-2", "big-3"):
        assert reported(play, name, is_explained=False).job_ids == reported(play, name, is_explained=True).job_ids
        assert {"big-1", "big-2", "big-3"} & set(reported(play, name, is_explained=False).job_ids) == {name}


def test_a_queue_names_which_jobs_are_really_before_a_job() -> None:
    play = play_of("big-1", "big-2", policy="fifo")
    assert reported(play, "big-2", is_explained=False) == Reason(
        code="BEHIND_IN_QUEUE", numbers={"jobs_waiting": 1}, job_ids=("big-1",)
    )


def test_listing_and_explaining_agree_about_a_full_cluster() -> None:
    play = Play()
    for name in ("a", "b"):
        play.submit(name, key="", share=Share.SAFE)
    play.submit("wide", gpus=2, allowed_gpus=(2,), global_batch_size=2)
    for name, code in (("b", "CLUSTER_FULL"), ("wide", "GPUS_NOT_IN_CLUSTER")):
        assert reported(play, name, is_explained=False).code == reported(play, name, is_explained=True).code == code


def test_a_job_that_may_span_nodes_is_told_which_nodes_count() -> None:
    """Its policy sees only those that share their checkpoints, of which there are none here."""
    play = Play(nodes=2)
    play.submit("wide", key="", gpus=2, global_batch_size=2, terms=QueueTerms(across_nodes=True))
    for is_explained in (False, True):
        message = reason_message(reported(play, "wide", is_explained=is_explained))
        assert message.code == "NODES_TOGETHER_TOO_SMALL"
        assert "--shared-checkpoints" in message.message


def test_a_job_for_devices_that_no_node_has_is_not_told_that_all_nodes_are_away() -> None:
    play = Play()
    play.submit("picky", key="", terms=QueueTerms(devices=("a100", "l4")))
    for is_explained in (False, True):
        message = reason_message(reported(play, "picky", is_explained=is_explained))
        assert message.code == "DEVICES_NOT_IN_CLUSTER"
        assert "--device" in message.message
        assert "cordoned" not in message.message


def test_a_job_on_several_nodes_names_them_all() -> None:
    play = Play(nodes=0)
    for name in ("n0", "n1"):
        play.tell(events.NodeJoined, node=node(name, rendezvous_address="127.0.0.1", storage_id="s", machine_id="m"))
    play.submit("wide", key="", gpus=2, global_batch_size=2, terms=QueueTerms(across_nodes=True))
    play.submit("narrow", key="")
    state = play.engine.state
    told = job_message(state, state.jobs["wide"])
    assert (told.node_id, list(told.node_ids)) == ("n0", ["n0", "n1"])
    assert log_nodes(state, state.jobs["wide"], scheduling_pb2.ReadJobLogRequest(rank=1)) == ["n1", "n0"]
    assert list(job_message(state, state.jobs["narrow"]).node_ids) == []


def test_a_job_that_refuses_to_share_is_not_told_how_sharing_could_be_weighed() -> None:
    for refusing in ("first", "second"):
        play = Play("sjf_bsbf")
        for name in ("first", "second"):
            play.submit(name, share=Share.NEVER if name == refusing else Share.SAFE)
        for is_explained in (False, True):
            reason = reported(play, "second", is_explained=is_explained)
            assert (reason.code, reason.job_ids) == ("SHARE_NOT_ALLOWED", (refusing,))


def test_who_waits_although_gpus_idle_on_a_cordoned_node_reads_so() -> None:
    play = Play("fifo", nodes=2)
    play.tell(queue_events.NodeCordoned, node_id="n1")
    play.submit("first")
    play.submit("second")
    assert "idle (n1): `cotenant nodes uncordon`." in remedy(play, "second")
    told = remedy(play, "second", role=Role.USER)
    assert told.endswith("idle (n1): `cotenant nodes uncordon` (ask an operator).")
    assert remedy(play, "second", role=Role.OPERATOR) == remedy(play, "second")
    play.tell(queue_events.NodeUncordoned, node_id="n1")
    play.submit("third")
    assert "uncordon" not in remedy(play, "third")


def test_what_only_operators_can_do_names_them_to_others_and_nothing_else_does() -> None:
    told = {code for code, remedy in REMEDIES.items() if "(ask an operator)" in name_whom_to_ask(remedy)}
    assert told == {
        "BEHIND_IN_QUEUE",
        "FAIR_SHARE",
        "FORMER_ATTEMPT_RUNS",
        "POLICY_FAILED",
        "POLICY_SILENT",
        "QUOTA",
        "QUOTA_TOO_SMALL",
        "TENANT_CLOSED",
    }
    assert all(name_whom_to_ask(remedy) == remedy for code, remedy in REMEDIES.items() if code not in told)


def test_a_job_that_spans_nodes_is_told_of_a_node_that_was_drained_under_it() -> None:
    play = Play("fifo", nodes=0)
    for name in ("n0", "n1"):
        play.tell(events.NodeJoined, node=node(name, rendezvous_address="127.0.0.1", storage_id="s", machine_id="m"))
    play.tell(queue_events.NodeCordoned, node_id="n1", is_draining=True)
    play.submit("wide", key="", gpus=2, global_batch_size=2, terms=QueueTerms(across_nodes=True))
    assert reported(play, "wide", is_explained=True).code == "NODES_TOGETHER_TOO_SMALL"
    assert "GPUs of cordoned nodes are idle (n1): `cotenant nodes uncordon`." in remedy(play, "wide")
    play.tell(queue_events.NodeCordoned, node_id="n0")
    for is_explained in (False, True):
        message = reason_message(reported(play, "wide", is_explained=is_explained))
        assert message.code == "GPUS_NOT_IN_CLUSTER"
        assert message.message.startswith(
            "Not one GPU is usable now, and 2 GPUs are needed: the nodes are away, cordoned"
        )


def test_a_wide_job_is_told_of_an_idle_cordoned_node_and_one_for_other_devices_is_not() -> None:
    play = Play("fifo", nodes=2)
    play.tell(events.NodeJoined, node=node("n2", gpus=2))
    for name in ("n1", "n2"):
        play.tell(queue_events.NodeCordoned, node_id=name)
    play.submit("wide", key="", gpus=2, allowed_gpus=(2,), global_batch_size=2)
    play.submit("picky", key="", terms=QueueTerms(devices=("a100",)))
    assert "idle (n2): `cotenant nodes uncordon`." in remedy(play, "wide")
    assert "uncordon" not in remedy(play, "picky")
