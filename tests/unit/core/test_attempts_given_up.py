"""Attempts that nobody wants any more: they are told to end, and their GPUs and their job wait for that."""

from __future__ import annotations

from scheduler_service.core import commands, events
from scheduler_service.core.records import Phase
from tests.support.engine_play import Play
from tests.support.scheduling import node


def joined(play: Play, *attempts: events.RunningAttempt) -> list[commands.Command]:
    play.tell(events.NodeDisconnected, node_id="n0")
    return play.tell(events.NodeJoined, node=node("n0", 1), attempts=attempts)


GIVEN_UP = events.RunningAttempt(job_id="j0", attempt=3, fence=9, gpu_ids=("n0.0",))


def test_an_unwanted_attempt_is_stopped_and_its_gpu_waits_for_that() -> None:
    play = Play()
    (stop,) = joined(play, GIVEN_UP)
    assert isinstance(stop, commands.StopJob)
    assert (stop.cause, stop.fence) == ("stale", 9)
    play.submit("j1")
    assert play.code("j1") == "CLUSTER_FULL"
    found = play.tell(events.JobStopped, job_id="j0", attempt=3, fence=9, exit_class="stopped")
    assert [type(order) for order in found] == [commands.LaunchJob]


def test_a_job_of_which_a_node_still_runs_an_attempt_that_was_given_up_starts_on_no_other_gpu() -> None:
    """Seed 400346: its next attempt began beside the one that had been told to end."""
    play = Play(nodes=2)
    joined(play, GIVEN_UP)
    assert play.submit() == []
    assert play.code() == "FORMER_ATTEMPT_RUNS"
    found = play.tell(events.JobStopped, job_id="j0", attempt=3, fence=9, exit_class="stopped")
    assert [type(order) for order in found] == [commands.LaunchJob]


def test_a_job_waits_for_a_lost_nodes_attempt_no_longer() -> None:
    play = Play(nodes=2)
    joined(play, GIVEN_UP)
    play.submit()
    play.tell(events.NodeDisconnected, node_id="n0")
    play.tell(events.NodeLost, node_id="n0")
    assert play.phase() is Phase.STARTING


def test_a_job_that_waits_when_a_node_tells_of_an_attempt_given_up_starts_when_the_node_takes_it_back() -> None:
    play = Play()
    play.submit("j1")
    play.submit()
    joined(play, events.RunningAttempt(job_id="j0", attempt=3, fence=9, gpu_ids=()))
    play.report(events.JobFinished, "j1", steps_done=1)
    assert (play.phase(), play.code()) == (Phase.PENDING, "FORMER_ATTEMPT_RUNS")
    joined(play)
    assert play.phase() is Phase.STARTING
