"""Random calls of every role at every service: `python -m benchmarks.fuzzed_roles --calls 20000` prints JSON.

The services run inside this process, behind their real decoders, rules of access and error handling; only the transport
is left out. Each role meets each service anew. `tracebacks`, `unbounded`, `forbidden_reached`, `leaked` and
`forbidden_changed` must be 0 everywhere; see `RoleTally`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from cotenant.access.roles import Role
from cotenant.access.tokens import issue_token, read_token, token_metadata, write_token_list
from tests.support.callers import metadata_of
from tests.support.fuzzed_predictor import fuzz_predictor
from tests.support.fuzzed_roles import SERVICES, Fuzzer, RoleTally, watching_log
from tests.support.fuzzed_scheduler import fuzz_scheduler

CALLS = 500
SEED = 15
COUNTED = ("tracebacks", "unbounded", "forbidden_reached", "leaked", "forbidden_changed")


def fuzz_role(folder: Path, service: str, role: Role, *, calls: int, seed: int = SEED) -> RoleTally:
    """Makes so many random calls of a role at a service that is begun for them.

    Args:
        folder: Empty; for the state of the service.
        service: Of SERVICES.
        role: Of all callers.
        calls: How many.
        seed: Of what they hold.
    """
    tally = RoleTally(service=service, role=role.value)
    names = {role.value: (role, f"{role}-1"), "alice": (Role.USER, "alice")}
    entries = [issue_token(folder / f"{file}.token", held, name) for file, (held, name) in names.items()]
    write_token_list(folder / "callers", entries)
    fuzzer = Fuzzer(tally=tally, metadata=metadata_of(folder, role), drawn=random.Random(f"{seed} {service} {role}"))
    with watching_log(tally):
        if service in ("scheduler", "agents"):
            alice = (token_metadata(read_token(folder / "alice.token")),)
            asyncio.run(fuzz_scheduler(fuzzer, folder, folder / "callers", alice, calls=calls))
        else:
            # Of its own: the service places the threads of calls on a core.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(fuzz_predictor, fuzzer, folder, folder / "callers", calls=calls).result()
    fuzzer.judge_reached()
    return tally


def main(calls: int = CALLS, services: Sequence[str] = tuple(SERVICES)) -> dict[str, object]:
    """Fuzzes every service as every role."""
    rows = []
    for service in services:
        for role in Role:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(fuzz_role(Path(folder), service, role, calls=calls))
            sys.stderr.write(f"{service} {role}: {rows[-1].calls} calls, {rows[-1].faults} faults\n")
    return {
        "target": dict.fromkeys(COUNTED, 0),
        "calls": sum(row.calls for row in rows),
        **{name: sum(getattr(row, name) for row in rows) for name in COUNTED},
        "cpu_s": round(sum(row.cpu_s for row in rows), 1),
        "rows": [asdict(row) for row in rows],
    }


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000, help="of each role at each service")
    parser.add_argument("--service", action="append", choices=tuple(SERVICES), dest="services")
    chosen = parser.parse_args()
    print(json.dumps(main(chosen.calls, chosen.services or tuple(SERVICES)), indent=1))


if __name__ == "__main__":
    _main()
