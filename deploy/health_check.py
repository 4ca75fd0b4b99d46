"""Asks a program whether it serves: exit 0 when it does, 1 with the reason on stderr when it does not.

Usage: python deploy/health_check.py 127.0.0.1:7071          (gRPC health protocol)
       python deploy/health_check.py http://127.0.0.1:7171/healthz
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 3.0


def complaint_over_http(url: str) -> str | None:
    """Return why a health page is bad, or None when it answers with 200.

    Args:
        url: The page's address, http only.
    """
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            return None if answer.status == 200 else f"{url} answers {answer.status}"
    except (urllib.error.URLError, TimeoutError) as error:
        return f"{url}: {error}"


def complaint_over_grpc(address: str) -> str | None:
    """Return why a server is not serving, or None when it is.

    Args:
        address: host:port of a server without TLS.
    """
    # Imported here, because loading gRPC costs more than the whole check over HTTP.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]  # the stubs lack it
                health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS
            )
        except grpc.RpcError as error:
            return f"{address}: {error.code().name}: {error.details()}"
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return None if name == "SERVING" else f"{address} reports {name}"


def main(arguments: list[str]) -> int:
    """Check the one address that is given and return the exit code (2 = wrong usage)."""
    if len(arguments) != 1:
        sys.stderr.write(__doc__ or "")
        return 2
    address = arguments[0]
    complaint = complaint_over_http(address) if address.startswith("http://") else complaint_over_grpc(address)
    if complaint:
        sys.stderr.write(complaint + "\n")
    return 1 if complaint else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
