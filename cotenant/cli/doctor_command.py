"""doctor: is everything here that cotenant needs, and what to do where it is not."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import click

from cotenant import __version__, quantities
from cotenant.access.certificates import ends_within
from cotenant.calibration_files import UNREADABLE_REMEDY, unreadable_calibrations
from cotenant.cli.exit_codes import ExitCode
from cotenant.cli.findings import Finding
from cotenant.cli.formats import emit_data
from cotenant.cli.isolation_checks import check_local_isolation, check_node_isolation
from cotenant.cli.session import Session, show, tell, with_session
from cotenant.cli.settings import state_folder
from cotenant.cli.tables import Column, Row, render_table
from cotenant.client import is_serving, open_channel
from cotenant.client_errors import CotenantError
from cotenant.counted_nouns import agreed
from cotenant.extras import EXTRAS, NEEDED_AT_START, NEEDED_LATER, TORCH, missing_modules
from cotenant.programs import run_captured
from cotenant.system_clock import now_ms
from cotenant.tls_probe import certificate_end_s, find_tls_mismatch
from cotenant.v1 import scheduling_pb2

OLDEST_PYTHON = (3, 11)
WANTED_DISK_BYTES = 2**30
ANSWER_TIMEOUT_S = 1.0
PROBE_TIMEOUT_S = 30.0
RENEWED_DAYS = 30
FIRST_COLUMNS_WIDTH = 30
STANDSTILLS = ("STATE_BEHIND", "RESTORE_UNCONFIRMED", "STATE_UNWRITABLE", "POLICY_SILENT")
"""Codes of a scheduler that starts no job."""
_LIBRARIES = ("grpcio", "grpcio-health-checking", "grpcio-status", "protobuf", "click", "rich", "pyyaml")
_COLUMNS = (Column(title="CHECK"), Column(title="STATE"), Column(title="FOUND", wraps=True))
_STYLES = {"ok": "green", "warning": "yellow", "fault": "red"}


@click.command(epilog="Exit status 1 when a check finds a fault. Example:  cotenant doctor -o json")
@with_session
def doctor(session: Session, /) -> None:
    """Check versions, programs, GPUs, ports, disk and the services that are configured."""
    findings = [finding for check in CHECKS for finding in check(session)]
    if session.output.is_for_people:
        rows = [_row(finding, session.width) for finding in findings]
        show(render_table(_COLUMNS, rows, session.width))
    else:
        emit_data({"findings": [asdict(finding) for finding in findings]}, session.output)
    if any(finding.state == "fault" for finding in findings):
        raise click.exceptions.Exit(ExitCode.ERROR)
    if session.output.is_for_people:
        tell(f"no fault; next: {_next_step(findings)}")


def _next_step(findings: Iterable[Finding]) -> str:
    """Returns the commands that a new user can type now."""
    is_up = any(finding.check == "scheduler" and finding.state == "ok" for finding in findings)
    submitting = "cotenant submit -- python SCRIPT.py"
    return submitting if is_up else f"cotenant demo, or cotenant up and in another terminal {submitting}"


def _row(finding: Finding, width: int) -> Row:
    is_long = len(finding.found) > width - FIRST_COLUMNS_WIDTH
    notes = [finding.found] * is_long + [f"remedy: {finding.remedy}"] * bool(finding.remedy)
    cells = (finding.check, finding.state, "" if is_long else finding.found)
    return Row(cells=cells, styles=((1, _STYLES[finding.state]),), note="; ".join(notes))


def check_python(session: Session) -> Iterator[Finding]:
    """Looks at the interpreter."""
    found = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info[:2] >= OLDEST_PYTHON
    remedy = "" if good else "install Python 3.11 or newer"
    yield Finding(check="python", state="ok" if good else "fault", found=found, remedy=remedy)


def check_libraries(session: Session) -> Iterator[Finding]:
    """Looks at the libraries that the command stands on."""
    missing = []
    for library in _LIBRARIES:
        try:
            metadata.version(library)
        except metadata.PackageNotFoundError:
            missing.append(library)
    found = f"missing: {', '.join(missing)}" if missing else f"cotenant {__version__} and {len(_LIBRARIES)} libraries"
    remedy = "pip install cotenant again" if missing else ""
    yield Finding(check="libraries", state="fault" if missing else "ok", found=found, remedy=remedy)


def check_programs(session: Session) -> Iterator[Finding]:
    """Looks for the programs that `cotenant up` starts."""
    for program, extra in EXTRAS.items():
        lacking = missing_modules((program, *NEEDED_AT_START[program], *NEEDED_LATER.get(program, ())))
        install = ["pip install torch"] * (TORCH in lacking)
        install += [f"pip install 'cotenant[{extra}]'"] * bool(set(lacking) - {TORCH})
        if lacking:
            remedy = f"{', then '.join(install)} if this machine shall run it"
            yield Finding(check=program, state="warning", found=f"not found: {', '.join(lacking)}", remedy=remedy)
        else:
            yield Finding(check=program, state="ok", found="installed")


def check_devices(session: Session) -> Iterator[Finding]:
    """Asks the agent which GPUs it sees."""
    remedy = "for a try without a GPU: cotenant demo, or cotenant up --standin-cores 0,1"
    try:
        done = run_captured("probe", ["-o", "json"], timeout_s=PROBE_TIMEOUT_S)
        probe = json.loads(done.stdout)
    except CotenantError as error:
        # Without the agent's libraries a try on this machine needs them first; check_programs has named them.
        yield Finding(check="gpus", state="warning", found="cannot look", remedy=str(error))
        return
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        yield Finding(check="gpus", state="warning", found=f"cannot look: {last}", remedy=remedy)
        return
    sound = [gpu for gpu in probe["gpus"] if not gpu.get("fault")]
    names = ", ".join(sorted({str(gpu.get("device", "?")) for gpu in sound}))
    if names:
        yield Finding(check="gpus", state="ok", found=f"{len(sound)}: {names}")
    for gpu in (gpu for gpu in probe["gpus"] if gpu.get("fault")):
        found = f"GPU {gpu.get('index', '?')} ({gpu.get('device', '?')}) takes no job: {gpu['fault']}"
        yield Finding(check="gpus", state="warning", found=found, remedy="`nvidia-smi` shows what the driver knows")
    if not probe["gpus"]:
        yield Finding(check="gpus", state="warning", found=str(probe.get("nvml") or "none"), remedy=remedy)
    yield Finding(check="limits", state="ok", found="enforceable: " + ", ".join(probe.get("enforcements", ())))
    yield from check_local_isolation(probe)


def check_disk(session: Session) -> Iterator[Finding]:
    """Looks at the place where `cotenant up` keeps its data."""
    state_dir = state_folder(session.settings)
    place = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    found = f"{quantities.format_gib(free_bytes)} free at {place}"
    if not os.access(place, os.W_OK):
        yield Finding(check="state dir", state="fault", found=f"{place} is not writable", remedy="set --state-dir")
    elif free_bytes < WANTED_DISK_BYTES:
        yield Finding(check="state dir", state="warning", found=found, remedy="free 1 GiB, or set another state_dir")
    else:
        yield Finding(check="state dir", state="ok", found=found)


def check_calibrations(session: Session) -> Iterator[Finding]:
    """Looks for measurements of this machine's devices that cannot be read: they count for nothing."""
    for error in unreadable_calibrations(state_folder(session.settings), now_ms()):
        yield Finding(check="calibration", state="warning", found=error.message, remedy=UNREADABLE_REMEDY)


def check_services(session: Session) -> Iterator[Finding]:
    """Asks the configured services for their health; distinguishes a free port from one in use."""
    settings = session.settings
    for name, address in (("scheduler", settings.scheduler), ("predictor", settings.predictor)):
        options = settings.channel_options(address)
        if is_serving(open_channel(options), timeout_s=ANSWER_TIMEOUT_S):
            yield Finding(check=name, state="ok", found=f"serving at {address}")
        elif mismatch := find_tls_mismatch(address, options.tls_files(), peer=name):
            yield Finding(check=name, state="fault", found=mismatch.cause, remedy=mismatch.remedy)
        elif _is_listening(address):
            found = f"something at {address} does not answer as a {name}"
            yield Finding(
                check=name, state="fault", found=found, remedy=f"another port, or set COTENANT_{name.upper()}"
            )
        else:
            found = f"nothing listens at {address}"
            configured = not session.resolved.is_default(name)
            remedy = f"start it (`cotenant up`), or set COTENANT_{name.upper()}"
            yield Finding(check=name, state="fault" if configured else "warning", found=found, remedy=remedy)


def check_certificates(session: Session) -> Iterator[Finding]:
    """Looks whether the own certificate, the authority's or a service's has to be renewed."""
    settings = session.settings
    renewing = "where its authority lies: cotenant certs renew NAME"
    yield from _check_file("certificate", settings.tls_certificate_file, renewing)
    beginning = "make another authority (cotenant certs init), and issue all certificates again"
    yield from _check_file("authority", settings.tls_ca_file, beginning)
    for name, address in (("scheduler", settings.scheduler), ("predictor", settings.predictor)):
        files = settings.channel_options(address).tls_files()
        left_s = certificate_end_s(address, files) if files.ca_file is not None else None
        if left_s is not None and left_s < RENEWED_DAYS * 86_400:
            found = f"that of the {name} ends in {max(0, left_s) // 3_600} hours"
            remedy = f"{renewing}; copy it to the {name} and start that again"
            yield Finding(check="service certificate", state="warning", found=found, remedy=remedy)


def _check_file(check: str, file: Path | None, remedy: str) -> Iterator[Finding]:
    if file is None or shutil.which("openssl") is None:
        return
    if ends_within(file, days=RENEWED_DAYS):
        found = f"{file} ends within {RENEWED_DAYS} days, has ended, or cannot be read"
        yield Finding(check=check, state="warning", found=found, remedy=remedy)
    else:
        yield Finding(check=check, state="ok", found=str(file))


def check_nodes(session: Session) -> Iterator[Finding]:
    """Counts the machines that the scheduler hears from."""
    try:
        client = session.scheduler()
        nodes, warnings = client.list_nodes(), client.list_warnings_and_troubles()
    except CotenantError:  # check_services has reported it
        return
    for warning in warnings:
        severity = "fault" if warning.code in STANDSTILLS else "warning"
        # The message ends with what to do, behind what is wrong.
        yield Finding(check="cluster", state=severity, found=f"{warning.code}: {warning.message}")
    lost = [node.node_id for node in nodes if not node.connected]
    if lost:
        remedy = "see the agent's log there; it dials the scheduler, not the other way round"
        yield Finding(check="nodes", state="warning", found=f"lost: {', '.join(lost)}", remedy=remedy)
    elif not nodes:
        yield Finding(check="nodes", state="warning", found="none has joined", remedy="start an agent")
    else:
        gpus = sum(len(node.gpus) for node in nodes)
        yield Finding(check="nodes", state="ok", found=agreed(f"{len(nodes)} with {gpus} device(s)"))
    yield from _faulty_gpus([node for node in nodes if node.connected])
    yield from check_node_isolation([node for node in nodes if node.connected])


def _faulty_gpus(nodes: Iterable[scheduling_pb2.Node]) -> Iterator[Finding]:
    """Says why GPUs take no job, those of one node with one fault together."""
    faults = Counter((node.node_id, gpu.fault) for node in nodes for gpu in node.gpus if not gpu.healthy)
    for (node_id, fault), count in faults.items():
        found = f"{node_id}: " + agreed(f"{count} GPU(s) faulty")
        yield Finding(check="nodes", state="warning", found=found, remedy=fault or "see the agent's log there")


CHECKS: tuple[Callable[[Session], Iterator[Finding]], ...] = (
    check_python,
    check_libraries,
    check_programs,
    check_devices,
    check_disk,
    check_calibrations,
    check_services,
    check_certificates,
    check_nodes,
)


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
