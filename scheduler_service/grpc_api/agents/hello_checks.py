"""What an agent may say of itself in its Hello, and who may say it."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.access.callers import Caller
from cotenant.access.certificate_fields import Validity, validity
from cotenant.names import NAME_PATTERN
from cotenant.v1 import node_agent_pb2
from scheduler_service.errors import AgentProtocolError
from scheduler_service.grpc_api.status_codes import Context

GPUS_PER_NODE_MAX = 1_024
ATTEMPTS_PER_HELLO_MAX = 10_000
INSTANCE_ID_CHARACTERS_MAX = 64
# Of names of devices, racks, versions and enforcements, which people and their terminals are shown.
SHOWN_TEXT_CHARACTERS_MAX = 200
HOST_CHARACTERS_MAX = 253
_SHOWN_NAMES = 5


def check_hello(hello: node_agent_pb2.Hello) -> None:
    """Bound what is kept, compared or shown of a Hello.

    Raises:
        AgentProtocolError: Something in it is too long, too much, or no name.
    """
    if not NAME_PATTERN.fullmatch(hello.node_id):
        raise AgentProtocolError("node_id must be 1 to 63 letters, digits or . _ -")
    if len(hello.gpus) > GPUS_PER_NODE_MAX or len(hello.attempts) > ATTEMPTS_PER_HELLO_MAX:
        raise AgentProtocolError("a Hello has at most 1,024 GPUs and 10,000 attempts")
    _check_texts(hello)
    _check_gpus(hello)


def _check_gpus(hello: node_agent_pb2.Hello) -> None:
    gpu_ids = [gpu.gpu_id for gpu in hello.gpus]
    if len(set(gpu_ids)) != len(gpu_ids) or not all(gpu_ids):
        raise AgentProtocolError("every GPU of a node needs an id of its own")
    if any(gpu.healthy and gpu.memory_bytes < 1 for gpu in hello.gpus):
        raise AgentProtocolError("a healthy GPU has memory")


def _check_texts(hello: node_agent_pb2.Hello) -> None:
    texts = (
        hello.instance_id,
        hello.machine_id,
        hello.installation_id,
        hello.session_secret,
        hello.seen.incarnation_id,
        hello.storage_id,
    )
    if any(len(text) > INSTANCE_ID_CHARACTERS_MAX for text in texts):
        raise AgentProtocolError(
            f"instance_id and the other ids of a Hello have at most {INSTANCE_ID_CHARACTERS_MAX} characters"
        )
    of_gpus = (text for gpu in hello.gpus for text in (gpu.gpu_id, gpu.device))
    if len(hello.rendezvous_address) > HOST_CHARACTERS_MAX or not hello.rendezvous_address.isprintable():
        raise AgentProtocolError(
            f"rendezvous_address is longer than {HOST_CHARACTERS_MAX} characters, or not printable"
        )
    for text in (hello.rack_id, hello.agent_version, *hello.enforcements, *of_gpus):
        if not text.isprintable() or len(text) > SHOWN_TEXT_CHARACTERS_MAX:
            raise AgentProtocolError(
                f"{text[:20]!r} in a Hello is longer than {SHOWN_TEXT_CHARACTERS_MAX} characters, or not printable"
            )
    for status in hello.attempts:
        if not NAME_PATTERN.fullmatch(status.key.job_id):
            raise AgentProtocolError(f"an attempt in a Hello is of {status.key.job_id[:20]!r}, which names no job")
        if len(status.key.incarnation_id) > INSTANCE_ID_CHARACTERS_MAX:
            raise AgentProtocolError("an attempt in a Hello names an incarnation that is none")


def certificate_names(context: Context) -> Sequence[str]:
    """Return the names of the caller's certificate."""
    names = context.auth_context()
    found = [*names.get("x509_subject_alternative_name", ()), *names.get("x509_common_name", ())]
    return [name.decode() for name in found]


def certificate_validity(context: Context) -> Validity | None:
    """Return when the caller's certificate is valid; None = it showed none."""
    shown = context.auth_context().get("x509_pem_cert", ())
    return next((validity(certificate) for certificate in shown), None)


def check_caller(node_id: str, caller: Caller) -> None:
    """See that a certificate or token of a node is that node's."""
    if caller.role is not None and caller.name != node_id:
        raise AgentProtocolError(
            f"the certificate or token is of node {caller.name!r}, not of {node_id!r}; give the agent its own, or "
            f"start it with --node-id {caller.name}"
        )


def check_certificate(node_id: str, names: Sequence[str]) -> None:
    """See that a certificate without a role names the node."""
    if node_id not in names:
        shown = ", ".join(map(repr, names[:_SHOWN_NAMES])) or "nothing"
        raise AgentProtocolError(
            f"the certificate does not name node {node_id!r}, it names {shown}; give the agent one with "
            f"subjectAltName=DNS:{node_id}, or start it with --node-id and a name that is in it"
        )
