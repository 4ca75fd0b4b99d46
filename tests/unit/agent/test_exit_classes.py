from __future__ import annotations

from cotenant_agent.exit_classes import classify, describe
from cotenant_agent.records import ExitFacts
from tests.support.cases import for_each

OOM_TEXT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@for_each(
    ("facts", "expected"),
    [
        (ExitFacts(return_code=0), "done"),
        (ExitFacts(return_code=0, cause="fenced"), "fenced"),
        (ExitFacts(return_code=0, cause="preempted"), "stopped"),
        (ExitFacts(return_code=85, cause="fenced", checkpoint_is_new=True), "fenced"),
        (ExitFacts(return_code=-9, oom_kills=1), "host_oom"),
        (ExitFacts(return_code=1, log_tail=OOM_TEXT), "gpu_oom"),
        (ExitFacts(return_code=1, reported_failure="gpu_oom"), "gpu_oom"),
        (ExitFacts(return_code=85, cause="gpu_oom", checkpoint_is_new=True), "gpu_oom"),
        (ExitFacts(return_code=-15, cause="cancelled", log_tail=OOM_TEXT), "stopped"),
        (ExitFacts(return_code=85, cause="preempted", checkpoint_is_new=True), "checkpointed"),
        (ExitFacts(return_code=85, cause="preempted"), "stopped"),
        (ExitFacts(return_code=85), "error"),
        (ExitFacts(return_code=-15, cause="preempted"), "stopped"),
        (ExitFacts(return_code=1, log_tail="NVRM: Xid (PCI:0000:01:00): 79"), "gpu_fault"),
        (ExitFacts(return_code=1, log_tail="an illegal memory access was encountered"), "gpu_fault"),
        (ExitFacts(return_code=1, log_tail="NCCL timeout on rank 3"), "communication"),
        (ExitFacts(return_code=-11), "signal"),
        (ExitFacts(return_code=2), "error"),
        (ExitFacts(return_code=None), "lost"),
    ],
)
def test_the_first_reason_that_holds_names_the_end(facts: ExitFacts, expected: str) -> None:
    assert classify(facts) == expected


def test_a_claimed_checkpoint_without_a_manifest_is_explained() -> None:
    facts = ExitFacts(return_code=85, cause="preempted")
    assert "no checkpoint manifest newer than the request" in describe(classify(facts), facts)


def test_a_signal_is_named() -> None:
    assert "SIGSEGV" in describe("signal", ExitFacts(return_code=-11))
