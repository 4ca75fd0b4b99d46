"""What a test starts as another user begins, whatever gRPC's threads do meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import Counter

import grpc

STARTS = 300
"""With gRPC's handlers one fork in sixty ended by signal 6 or 11 before its program."""


def _open_channels(is_over: threading.Event) -> None:
    while not is_over.is_set():
        with grpc.insecure_channel("127.0.0.1:1") as channel, contextlib.suppress(grpc.RpcError):
            channel.unary_unary("/none/None")(b"", timeout=0.02)  # type: ignore[arg-type]  # stubs without a type


def test_a_program_that_is_started_by_a_fork_beside_grpc_begins() -> None:
    is_over = threading.Event()
    threads = [threading.Thread(target=_open_channels, args=(is_over,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        # A user, even its own one, makes Python fork.
        codes = Counter(subprocess.Popen(["/bin/true"], user=os.geteuid()).wait() for _ in range(STARTS))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert codes == {0: STARTS}
