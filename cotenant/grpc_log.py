"""The lines that gRPC's core writes to stderr by itself: not JSON, one or two for every handshake that fails."""

from __future__ import annotations

import os


def silence_grpc() -> None:
    """Keep them out unless GRPC_VERBOSITY asks for them; must be called before grpc is imported, which reads it then.

    Our own programs report why a handshake failed, see `cotenant.tls_probe`.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
