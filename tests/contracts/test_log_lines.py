"""Every program writes log lines of one schema, whatever it logs."""

from __future__ import annotations

import ast
import functools
import io
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cotenant.structured_log import JsonFormatter, LineHandler
from tests.support.cases import for_each
from tests.support.log_schema import EVENT, read_line, read_lines

ROOT = Path(__file__).parents[2]
PACKAGES = ("cotenant", "predictor_service", "scheduler_service", "cotenant_agent", "cotenant_simulator", "profiling")
LOGGERS = {"_log", "_logger", "logger", "logging"}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
HOSTILE = {
    "a text of a million": "x" * 1_000_000,
    "lines": "one\ntwo\r\n\u2028three",
    "a surrogate": "\ud800",
    "no number": float("nan"),
    "a nested infinity": {"peak": [float("inf")]},
    "a long list": list(range(100_000)),
    "keys that are no text": {(1, 2): "pair"},
    "bytes": b"\x00\xff",
    "a path": Path("/tmp"),
    "a huge number": 10**5_000,
    "a class": object,
}


@functools.cache
def logging_calls() -> Sequence[tuple[str, ast.Call]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    sources = ((path, path.read_text()) for path in paths)
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node)
        for path, source in sources
        if any(f"{name}." in source for name in LOGGERS)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and is_logging(node.func)
    ]


def is_logging(called: ast.expr) -> bool:
    return (
        isinstance(called, ast.Attribute)
        and isinstance(called.value, ast.Name)
        and called.value.id in LOGGERS
        and called.attr in LEVELS
    )


def log_with(fields: dict[str, object], *, logger: str = "cotenant_agent.node_agent", message: str = "tried") -> str:
    """Return what the program's formatter makes of a record."""
    stream = io.StringIO()
    handler = LineHandler(stream)
    handler.setFormatter(JsonFormatter("agent", {"node_id": "n"}))
    handler.handle(logging.makeLogRecord({"name": logger, "msg": message, "levelno": logging.WARNING, **fields}))
    return stream.getvalue()


def test_every_event_is_a_name_that_a_filter_can_look_for_and_its_numbers_are_fields() -> None:
    calls = logging_calls()
    assert len(calls) > 50
    for where, call in calls:
        event, *values = (
            call.args[1:] if isinstance(call.func, ast.Attribute) and call.func.attr == "log" else call.args
        )
        names = [node.value for node in ast.walk(event) if isinstance(node, ast.Constant)]
        assert all(isinstance(name, str) and EVENT.fullmatch(name) for name in names), where
        assert names or isinstance(event, ast.Name), where
        assert not values, where


def test_no_field_has_a_name_that_python_keeps_for_itself() -> None:
    kept = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "traceback"}
    for where, call in logging_calls():
        keys = [
            key for part in call.keywords for node in ast.walk(part) if isinstance(node, ast.Dict) for key in node.keys
        ]
        names = {key.value for key in keys if isinstance(key, ast.Constant)}
        assert not names & kept, where


@for_each("name", HOSTILE)
def test_whatever_a_field_holds_the_line_keeps_to_the_schema_and_to_its_length(name: str) -> None:
    (text,) = log_with({"value": HOSTILE[name]}).splitlines()
    line = read_line(text, "agent")
    assert set(line["fields"]) == {"node_id", "value"}
    assert (line["level"], line["event"]) == ("warning", "tried")


def test_what_a_library_says_is_an_event_of_its_own() -> None:
    line = read_line(log_with({}, logger="asyncio", message="Task was destroyed, but it is 100 % pending"), "agent")
    assert line["event"] == "library_message"
    assert line["fields"]["logger"] == "asyncio"
    assert line["fields"]["message"].startswith("Task was destroyed")


def test_a_line_that_the_disk_does_not_take_is_lost_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    with Path("/dev/full").open("w") as stream:
        handler = LineHandler(stream)
        handler.setFormatter(JsonFormatter("agent"))
        handler.handle(logging.makeLogRecord({"name": "cotenant_agent", "msg": "attempt_ended"}))
    assert capfd.readouterr() == ("", "")


def test_an_uncaught_exception_is_a_line_with_the_end_of_its_traceback() -> None:
    script = """
import threading, warnings
from cotenant.structured_log import start_logging
start_logging("predictor", "info", is_service=True)
warnings.warn("old\\nways", UserWarning)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join()
def deeper(depth):
    raise RuntimeError("x" * 10_000) if depth == 0 else None
deeper(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    warned, in_thread, in_main = read_lines(done.stderr, "predictor")
    assert done.returncode == 1
    assert (warned["event"], warned["fields"]["logger"]) == ("library_message", "py.warnings")
    assert (in_thread["event"], in_main["event"]) == ("uncaught_exception", "uncaught_exception")
    assert in_thread["fields"]["traceback"].endswith("ZeroDivisionError: division by zero")
    assert len(in_main["fields"]["traceback"]) == 4_000
