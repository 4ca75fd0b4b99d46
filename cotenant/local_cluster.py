"""Predictor, scheduler and agents as processes of this machine, on loopback.

Used by `cotenant up`, by `cotenant demo` and by end-to-end tests. Each program writes its address to a ready file
once it serves; ports may be 0. Stopping is SIGTERM (programs drain), then SIGKILL after a grace.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cotenant import system_clock
from cotenant.access.local_access import LocalAccess, prepare_local_access
from cotenant.client_errors import ProgramError
from cotenant.programs import command_line, require_programs

READY_TIMEOUT_MS = 300_000
STOP_GRACE_MS = 15_000
POLL_MS = 50
LOG_TAIL_LINES = 15
LOG_BYTES_MAX = 16 << 20
"""Of a program's log, and of the one before it next to it."""
PROGRAMS = ("predictor_service", "scheduler_service", "cotenant_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """One node agent.

    Attributes:
        node_id: Name of the node.
        standin_cores: Cores that stand in for GPUs; empty = the machine's real GPUs.
        standin_memory_bytes: Memory of each stand-in device.
        allowed_directories: Where jobs may run.
        any_command: Whether they may run any executable with any environment; otherwise this Python only.
        stop_jobs_on_exit: End the jobs with the agent instead of leaving them to their lease.
        calibrates: Whether it measures new devices before a job runs, whatever others do; None = as its settings say.
    """

    node_id: str = "local"
    standin_cores: Sequence[int] = ()
    standin_memory_bytes: int = 2 * 2**30
    allowed_directories: Sequence[Path] = ()
    any_command: bool = False
    stop_jobs_on_exit: bool = False
    calibrates: bool | None = None


@dataclass(slots=True)
class Program:
    """One started program.

    Attributes:
        name: predictor, scheduler or agent-N.
        verb: What cotenant.programs calls it.
        arguments: Its flags without the ready file.
        process: The newest process; None = not started.
        address: Where it serves; empty until it is ready.
        log_start_bytes: Where in the log file this run of it begins.
    """

    name: str
    verb: str
    arguments: list[str]
    state_dir: Path
    process: subprocess.Popen[bytes] | None = None
    address: str = ""
    log_start_bytes: int = 0

    @property
    def log_file(self) -> Path:
        """Where its stdout and stderr go."""
        return self.state_dir / "logs" / f"{self.name}.log"

    @property
    def ready_file(self) -> Path:
        """What it writes once it serves."""
        return self.state_dir / f"{self.name}.ready.json"

    def start(self) -> None:
        """Starts the process; `wait_ready` returns when it serves."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        command = [*command_line(self.verb), *self.arguments, "--ready-file", str(self.ready_file)]
        with self.log_file.open("ab") as log:
            self.log_start_bytes = log.tell()
            # A session of its own: Ctrl-C on the terminal reaches us, and we stop the programs in order.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait_ready(self, *, stop: threading.Event | None = None) -> bool:
        """Waits until the program serves; False when `stop` was set before.

        Args:
            stop: Ends the wait.

        Raises:
            ProgramError: It ended, or took too long; the message has the end of its log.
        """
        deadline_ms = system_clock.steady_ms() + READY_TIMEOUT_MS
        while not self.ready_file.exists():
            if self.has_ended():
                raise ProgramError(
                    f"the {self.name} ended at its start:\n{self.log_tail()}", remedy=f"see {self.log_file}"
                )
            if system_clock.steady_ms() > deadline_ms:
                raise ProgramError(
                    f"the {self.name} is not ready after {READY_TIMEOUT_MS // 1000} s:\n{self.log_tail()}"
                )
            if system_clock.wait_ms(POLL_MS, stop):
                return False
        self.address = str(json.loads(self.ready_file.read_text(encoding="utf-8")).get("address", ""))
        return True

    def bound_log(self) -> None:
        """Keeps the log from growing for ever: at `LOG_BYTES_MAX` it moves to one next to it, in place of that one."""
        # A disk that takes no copy loses no line; the next look tries again.
        with suppress(OSError):
            if self.log_file.stat().st_size > LOG_BYTES_MAX:
                shutil.copyfile(self.log_file, self.log_file.with_suffix(".log.1"))
                # The program appends to the file that it has open.
                os.truncate(self.log_file, 0)
                self.log_start_bytes = 0

    def has_ended(self) -> bool:
        """Tells whether the process was started and is gone."""
        return self.process is not None and self.process.poll() is not None

    def how_it_ended(self) -> str:
        """Returns what is behind its name in a sentence about its end."""
        if self.process is None or not self.has_ended():
            return "is running"
        status = self.process.returncode
        if status >= 0:
            return f"ended with exit status {status}"
        why = ", as where the machine has no memory left" if status == -signal.SIGKILL else ""
        name = next((each.name for each in signal.Signals if each == -status), f"signal {-status}")
        return f"was ended by {name}{why}"

    def kill(self) -> None:
        """Ends the process as a crash would: SIGKILL, no chance to write anything."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Asks the process to end, and insists after the grace."""
        if self.process is None or self.has_ended():
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=STOP_GRACE_MS / 1000)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_tail(self) -> str:
        """Returns the last lines that this run of the program wrote."""
        try:
            lines = self.log_file.read_bytes()[self.log_start_bytes :].decode("utf-8", "replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-LOG_TAIL_LINES:])


@dataclass(slots=True)
class LocalCluster:
    """All programs of one cluster on this machine.

    Attributes:
        state_dir: Where they keep their data and logs.
        policy: Scheduling policy at the start.
        is_missing_policy_replaced: Whether it takes the place of a stored one that is not installed any more.
        agents: One per node.
        predictor_port: 0 = any free one; the same holds for the scheduler's.
        has_trials: Whether jobs may share on trial.
        tenants_file: Quotas and weights of tenants; None = all jobs are one tenant's.
        access: How this account alone gets in, once it was started.
    """

    state_dir: Path
    policy: str
    agents: Sequence[AgentOptions]
    predictor_port: int = 0
    scheduler_port: int = 0
    has_trials: bool = True
    is_missing_policy_replaced: bool = False
    tenants_file: Path | None = None
    access: LocalAccess | None = None
    programs: dict[str, Program] = field(default_factory=dict)

    def start(self, *, on_step: Callable[[str], None] = lambda name: None, stop: threading.Event | None = None) -> None:
        """Starts everything and waits until it serves.

        Args:
            on_step: Called with the name of each program before it is started.
            stop: Set to end the start early, without an error.

        Raises:
            ProgramError: A library is not installed, or one of them did not come up; the others are stopped.
        """
        require_programs("a cluster on this machine", PROGRAMS)
        self.access = prepare_local_access(self.state_dir, [agent.node_id for agent in self.agents])
        plan: list[tuple[str, Callable[[], Program]]] = [
            ("predictor", self._predictor),
            ("scheduler", lambda: self._scheduler(self.scheduler_port)),
        ]
        plan += [(f"agent-{agent.node_id}", partial(self._agent, agent)) for agent in self.agents]
        try:
            for name, build in plan:
                on_step(name)
                if not self._launch(build(), stop):
                    return
                self._announce()
        except BaseException:
            self.stop()
            raise

    def restart_scheduler(self) -> None:
        """Starts the scheduler again on the state and the port that it had."""
        scheduler = self.programs["scheduler"]
        port = int(scheduler.address.rpartition(":")[2])
        self._launch(self._scheduler(port))

    def target(self, service: str) -> str:
        """Returns how this account calls scheduler or predictor: unix:PATH where that is the private way."""
        return self.programs[service].address if self.access is None else f"unix:{self.access.socket(service)}"

    @property
    def predictor_address(self) -> str:
        """Where the predictor serves."""
        return self.programs["predictor"].address

    @property
    def scheduler_address(self) -> str:
        """Where the scheduler serves."""
        return self.programs["scheduler"].address

    def ended_program(self) -> Program | None:
        """Returns a program that has ended without being stopped."""
        return next((program for program in self.programs.values() if program.has_ended()), None)

    def stop(self) -> None:
        """Stops agents, scheduler and predictor, in that order."""
        for program in reversed(self.programs.values()):
            program.stop()
        if self.access is not None:
            self.access.withdraw()

    def watch(self, stop: threading.Event) -> Program | None:
        """Blocks until `stop` is set (None) or a program has ended (that one)."""
        while not system_clock.wait_ms(500, stop):
            ended = self.ended_program()
            if ended is not None:
                return ended
            for program in self.programs.values():
                program.bound_log()
        return None

    def _announce(self) -> None:
        if self.access is not None:
            services = {name: program.address for name, program in self.programs.items()}
            self.access.announce({name: services[name] for name in ("predictor", "scheduler") if name in services})

    def _private(self, service: str) -> list[str]:
        """What keeps others out of a service."""
        access = self.access
        if access is None:
            return []
        return ["--callers-file", str(access.callers_file), "--socket", str(access.socket(service))]

    def _token(self, name: str) -> list[str]:
        return [] if self.access is None else ["--token-file", str(self.access.token_file(name))]

    def _launch(self, program: Program, stop: threading.Event | None = None) -> bool:
        self.programs[program.name] = program
        program.start()
        return program.wait_ready(stop=stop)

    def _predictor(self) -> Program:
        arguments = ["--address", f"127.0.0.1:{self.predictor_port}", "--metrics-address", "127.0.0.1:0"]
        arguments += ["--state-dir", str(self.state_dir / "predictor"), *self._private("predictor")]
        if any(agent.standin_cores for agent in self.agents):
            # Learning would take the cores that stand in for devices.
            arguments += ["--retrain-hours", "0", "--no-retrain-on-drift"]
        return Program("predictor", "serve-predictor", arguments, self.state_dir)

    def _scheduler(self, port: int) -> Program:
        arguments = ["--address", f"127.0.0.1:{port}", "--metrics-address", "127.0.0.1:0"]
        arguments += ["--state-dir", str(self.state_dir / "scheduler"), "--policy", self.policy, "--sees-files"]
        arguments += ["--predictor", self.target("predictor"), *self._private("scheduler"), *self._token("scheduler")]
        arguments += ["--no-trials"] * (not self.has_trials)
        arguments += ["--replace-missing-policy"] * self.is_missing_policy_replaced
        if self.tenants_file is not None:
            arguments += ["--tenants", str(self.tenants_file)]
        return Program("scheduler", "serve-scheduler", arguments, self.state_dir)

    def _agent(self, options: AgentOptions) -> Program:
        arguments = ["--scheduler", self.target("scheduler"), "--node-id", options.node_id]
        arguments += self._token(f"node-{options.node_id}")
        arguments += ["--state-dir", str(self.state_dir / f"agent-{options.node_id}")]
        if options.standin_cores:
            arguments += ["--standin-cores", ",".join(str(core) for core in options.standin_cores)]
            arguments += ["--standin-memory-bytes", str(options.standin_memory_bytes)]
        else:
            arguments += ["--nvml"]
        if options.stop_jobs_on_exit:
            arguments += ["--stop-jobs-on-exit"]
        if options.calibrates is not None:
            arguments += ["--calibrate", "--calibrate-despite-load"] if options.calibrates else ["--no-calibrate"]
        if options.any_command:
            arguments += ["--allow-any-command"]
        for directory in options.allowed_directories:
            arguments += ["--allow-directory", str(directory)]
        return Program(f"agent-{options.node_id}", "run-agent", arguments, self.state_dir)
