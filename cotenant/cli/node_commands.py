"""nodes and gpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from cotenant import quantities, system_clock
from cotenant.cli.formats import OutputFormat, emit_data, emit_message, message_to_dict
from cotenant.cli.session import Session, show, tell, tell_warnings, with_session
from cotenant.cli.tables import Column, Row, render_table
from cotenant.cli.unsaved_work import jobs_on_node, tell_unsaved_work
from cotenant.command_groups import ListedGroup
from cotenant.counted_nouns import agreed
from cotenant.v1 import scheduling_pb2

_ABILITIES = frozenset(
    {
        "rank_processes",
        "parameter_servers",
        "parameter_servers_across_nodes",
        "prepared_starts",
        "prepared_starts_across_nodes",
    }
)
"""What a node can start is said together with what it enforces, and enforces nothing."""
_NODE_COLUMNS = (
    Column(title="NODE", wraps=True),
    Column(title="STATE"),
    Column(title="GPUS", right=True),
    Column(title="JOBS", right=True),
    Column(title="CORES", right=True),
    Column(title="HOST MEMORY", right=True),
    Column(title="SEEN", right=True),
)
_GPU_COLUMNS = (
    Column(title="GPU", wraps=True),
    Column(title="DEVICE", wraps=True),
    Column(title="STATE"),
    Column(title="UTIL", right=True),
    Column(title="USED", right=True),
    Column(title="RESERVED", right=True),
    Column(title="TOTAL", right=True),
    Column(title="JOBS", goes_below=True),
)


@click.group(
    cls=ListedGroup,
    invoke_without_command=True,
    epilog="\b\nExamples:\n  cotenant nodes -o json\n  cotenant nodes drain node-3\n  cotenant nodes confirm",
)
@with_session
def nodes(session: Session, /) -> None:
    """List machines, what they have and which limits they really enforce; or cordon, drain or give one up."""
    if click.get_current_context().invoked_subcommand is None:
        _list_nodes(session)


@nodes.command(name="forget", epilog="Example:  cotenant nodes forget node-3")
@click.argument("node")
@with_session
def forget_node(session: Session, /, node: str) -> None:
    """Give NODE up at once: its machine is gone, was renamed, or its cards moved. Refused while it is heard.

    What ran there is lost and starts again; make sure that the machine is off, or it may run twice for a minute.
    """
    lost = session.scheduler().forget_node(node)
    tell(f"forgot {node}; lost: {', '.join(lost) or 'no job'}")
    _emit_change(session, node, "forgotten", lost)


@nodes.command(name="cordon", epilog="Example:  cotenant nodes cordon node-3")
@click.argument("node")
@with_session
def cordon_node(session: Session, /, node: str) -> None:
    """Start nothing more on NODE; what runs there runs on. `cotenant nodes uncordon` undoes it."""
    session.scheduler().cordon_node(node)
    tell(f"cordoned {node}: nothing new starts there")
    _emit_change(session, node, "cordoned", ())


@nodes.command(name="drain", epilog="Example:  cotenant nodes drain node-3")
@click.argument("node")
@click.option("--dry-run", is_flag=True, help="Say what would be moved, and lost; change nothing.")
@with_session
def drain_node(session: Session, /, node: str, dry_run: bool) -> None:
    """Cordon NODE and stop what runs there with checkpoints; it goes on elsewhere when there is room.

    A job whose script writes no checkpoint loses its steps; a warning names it.
    """
    client = session.scheduler()
    there = jobs_on_node(client, node)
    tell_unsaved_work(there)
    if dry_run:
        moving = [job.job_id for job in there]
        tell(f"{node} is not drained (dry run); would move away: {', '.join(moving) or 'no job'}")
        _emit_change(session, node, "unchanged", moving)
        return
    moving = list(client.cordon_node(node, drain=True))
    tell(f"draining {node}; moving away: {', '.join(moving) or 'no job'}")
    _emit_change(session, node, "draining", moving)


@nodes.command(name="uncordon", epilog="Example:  cotenant nodes uncordon node-3")
@click.argument("node")
@with_session
def uncordon_node(session: Session, /, node: str) -> None:
    """Let NODE take jobs again, however it was cordoned or drained."""
    session.scheduler().uncordon_node(node)
    tell(f"{node} takes jobs again")
    _emit_change(session, node, "uncordoned", ())


@nodes.command(name="confirm")
@with_session
def confirm_restore(session: Session, /) -> None:
    """Confirm a restore: the scheduler that the backup was taken from runs no more, so its nodes may join this one."""
    answer = session.scheduler().confirm_restore()
    joining = ", ".join(one[:8] for one in answer.ancestor_ids)
    tell(f"this cluster is {answer.incarnation_id[:8]}; nodes of these join it: {joining or 'none but its own'}")


def _emit_change(session: Session, node: str, became: str, job_ids: Sequence[str]) -> None:
    """Writes for programs what a node has become, and the jobs that this moves or loses."""
    if session.output is OutputFormat.NAME:
        show(node)
    elif not session.output.is_for_people:
        emit_data({"node_id": node, "became": became, "job_ids": list(job_ids)}, session.output)


def _list_nodes(session: Session) -> None:
    found = session.scheduler().list_nodes()
    if not session.output.is_for_people:
        names = [node.node_id for node in found]
        troubles = session.scheduler().list_troubles()
        emit_message(scheduling_pb2.ListNodesResponse(nodes=found, troubles=troubles), session.output, names=names)
        return
    at_ms = system_clock.now_ms()
    show(render_table(_NODE_COLUMNS, [_node_row(node, at_ms) for node in found], session.width))
    if not found:
        tell("no node has joined; start an agent with `python -m cotenant_agent run` or `cotenant up`")
    tell_warnings(session.scheduler().list_warnings_and_troubles())


def _node_row(node: scheduling_pb2.Node, at_ms: int) -> Row:
    cordoned = "draining" if node.draining else "cordoned"
    state = "lost" if not node.connected else "ready" if node.schedulable else cordoned
    jobs = {job_id for gpu in node.gpus for job_id in gpu.job_ids}
    if node.draining and node.connected and not jobs:
        state = "drained"
    cells = [
        node.node_id,
        state,
        str(len(node.gpus)),
        str(len(jobs)),
        f"{node.cpu_cores:g}",
        quantities.format_gib(node.host_memory_bytes),
        f"{quantities.format_duration(at_ms - node.last_heartbeat_at_ms)} ago" if node.last_heartbeat_at_ms else "-",
    ]
    enforced = [name for name in node.enforcements if name not in _ABILITIES]
    note = "enforces: " + (", ".join(enforced) or "nothing") + _calibration_note(node, at_ms)
    note = "; ".join([*_fault_notes(node), note])
    return Row(cells=cells, styles=((1, "green" if state == "ready" else "red"),), note=note)


def _fault_notes(node: scheduling_pb2.Node) -> list[str]:
    """Returns why GPUs of a node get no job, and how many have that fault."""
    faults = Counter(gpu.fault or "no reason was given" for gpu in node.gpus if not gpu.healthy)
    return [agreed(f"{count} of {len(node.gpus)} GPU(s) faulty") + f": {fault}" for fault, count in faults.items()]


def _calibration_note(node: scheduling_pb2.Node, at_ms: int) -> str:
    """Returns by device type when it was calibrated, or why not; empty for a node that does not say."""
    texts: dict[str, str] = {}
    for gpu in node.gpus:
        if gpu.HasField("calibration"):
            ago = quantities.format_duration(at_ms - gpu.calibration.measured_at_ms)
            load = ", while others used it" if gpu.calibration.foreign_load else ""
            texts[gpu.device] = f"{gpu.device} calibrated {ago} ago{load}"
        elif gpu.not_calibrated:
            texts[gpu.device] = f"{gpu.device} not calibrated: {gpu.not_calibrated}"
    return "".join(f"; {text}" for text in texts.values())


@click.command(epilog="Example:  cotenant gpus -o wide")
@with_session
def gpus(session: Session, /) -> None:
    """List GPUs: UTIL and USED are measured, RESERVED is what placement set aside.

    A GPU is free, busy, shared or releasing; or faulty, lost with its node, or cordoned with it.
    """
    nodes = session.scheduler().list_nodes()
    found = [gpu for node in nodes for gpu in node.gpus]
    if not session.output.is_for_people:
        if session.output.value == "name":
            for gpu in found:
                click.echo(gpu.gpu_id)
            return
        emit_data({"gpus": [message_to_dict(gpu) for gpu in found]}, session.output)
        return
    rows = [_gpu_row(gpu, node) for node in nodes for gpu in node.gpus]
    show(render_table(_GPU_COLUMNS, rows, session.width))
    if not found:
        tell("no GPU is known; `cotenant nodes` lists the machines")


def _gpu_state(gpu: scheduling_pb2.Gpu, node: scheduling_pb2.Node) -> str:
    """Returns what keeps a GPU from a job, or who has it; free = a job could start there now."""
    if not node.connected:
        return "lost"
    if not gpu.healthy:
        return "faulty"
    if gpu.releasing:
        return "releasing"
    if gpu.job_ids:
        return "shared" if len(gpu.job_ids) > 1 else "busy"
    return "free" if node.schedulable else "cordoned"


def _gpu_row(gpu: scheduling_pb2.Gpu, node: scheduling_pb2.Node) -> Row:
    state = _gpu_state(gpu, node)
    cells = [
        gpu.gpu_id,
        gpu.device,
        state,
        quantities.format_percent(gpu.utilization_ratio),
        quantities.format_gib(gpu.memory_used_bytes),
        quantities.format_gib(gpu.memory_reserved_bytes),
        quantities.format_gib(gpu.memory_bytes),
        ",".join(gpu.job_ids) or "-",
    ]
    return Row(cells=cells, styles=((2, "red" if state in ("faulty", "lost") else ""),), note=gpu.fault)
