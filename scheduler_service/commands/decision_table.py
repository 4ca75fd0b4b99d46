"""Decisions about a snapshot as a table: a row per job and policy, and below it what was weighed, if asked for."""

from __future__ import annotations

from rich.text import Text

from cotenant.cli.tables import Column, Row, render_table
from cotenant.v1 import scheduling_pb2

_JOB, _POLICY = Column(title="JOB"), Column(title="POLICY")
_REST = (Column(title="DECISION"), Column(title="GPUS", wraps=True), Column(title="REASON", wraps=True))


def decision_table(policy: str, answer: scheduling_pb2.DecideResponse, width: int) -> Text:
    """Lay an answer out, job by job, so that the policies stand below each other.

    Args:
        policy: The one that was asked for; the compared ones say their names.
        answer: With one list of decisions per policy.
        width: Columns of the terminal.
    """
    if not answer.comparisons:
        return render_table((_JOB, *_REST), [_row(decision, "") for decision in answer.decisions], width)
    lists = [(policy, answer.decisions), *((one.policy, one.decisions) for one in answer.comparisons)]
    decided = [(decision, name) for name, decisions in lists for decision in decisions]
    places = {job_id: place for place, job_id in enumerate(dict.fromkeys(decision.job_id for decision, _ in decided))}
    decided.sort(key=lambda pair: places[pair[0].job_id])
    return render_table((_JOB, _POLICY, *_REST), [_row(decision, name) for decision, name in decided], width)


def _row(decision: scheduling_pb2.Decision, policy: str) -> Row:
    action = decision.WhichOneof("action") or ""
    taken = getattr(getattr(decision, action), "assignments", ()) if action else ()
    cells = [action, ",".join(assignment.gpu_id for assignment in taken), decision.reason.message]
    note = "; ".join(_candidate_text(candidate) for candidate in decision.candidates)
    return Row(cells=[decision.job_id, *([policy] if policy else []), *cells], note=note)


def _candidate_text(candidate: scheduling_pb2.Candidate) -> str:
    verdict = "chosen" if candidate.chosen else "possible" if candidate.feasible else "no"
    cost = f", cost {candidate.cost:.4g}" if candidate.HasField("cost") else ""
    reason = candidate.reason.message.rstrip(".") or candidate.reason.code
    return f"{candidate.gpu_id}: {verdict}{cost}{', ' if reason else ''}{reason}"
