"""How large one message between a client and the scheduler may be, sent for real at the bound and beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from cotenant.client import ChannelOptions, SchedulerClient, open_channel
from cotenant.client_errors import NotFeasibleError
from cotenant.v1 import scheduling_pb2, scheduling_pb2_grpc
from scheduler_service.grpc_api import pages
from scheduler_service.grpc_api.server import RECEIVED_MESSAGE_BYTES_MAX, SENT_MESSAGE_BYTES_MAX, SERVER_OPTIONS
from tests.support.callers import code_of_empty_call, served_methods
from tests.support.live_scheduler import running_scheduler

OF_EACH_KIND = ("GetJob", "WatchJobs", "Decide", "Connect")
"""One answer, many, a request that is read piece by piece, and a stream both ways."""
METHODS = [name for name in served_methods() if "SchedulingService" in name or "NodeAgentService" in name]
GET_JOB = "/cotenant.v1.SchedulingService/GetJob"
FAILURES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_scheduler(tmp_path_factory.mktemp("scheduler")) as served_at:
        yield served_at


def padded(size_bytes: int) -> bytes:
    """A message of every type: one field that none of them has, of so many bytes in all."""
    head = b"\xfa\xff\xff\xff\x0f"  # field 536,870,911, of bytes
    length = size_bytes - len(head) - 4
    return (
        head + bytes((length >> shift) & 0x7F | (0x80 if shift < 21 else 0) for shift in (0, 7, 14, 21)) + bytes(length)
    )


def test_the_clients_channel_sends_what_the_scheduler_takes_and_not_one_byte_more(address: str) -> None:
    with open_channel(ChannelOptions(address=address)) as channel:
        taken, told = code_of_empty_call(channel, GET_JOB, None, content=padded(RECEIVED_MESSAGE_BYTES_MAX))
        assert taken not in (*FAILURES, grpc.StatusCode.RESOURCE_EXHAUSTED), told
        refused, told = code_of_empty_call(channel, GET_JOB, None, content=padded(RECEIVED_MESSAGE_BYTES_MAX + 1))
        assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert told.startswith("CLIENT: Sent message larger")


class Echo(grpc.GenericRpcHandler):
    """Answers every method with as many bytes as it is asked for."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_unary_rpc_method_handler(lambda request, _: padded(int(request)))


def test_the_clients_channel_takes_what_the_schedulers_options_let_a_server_answer_and_that_is_no_byte_more() -> None:
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads, handlers=[Echo()], options=SERVER_OPTIONS)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with open_channel(ChannelOptions(address=f"127.0.0.1:{port}")) as channel:
                at_bound, beyond = (str(SENT_MESSAGE_BYTES_MAX + more).encode() for more in (0, 1))
                taken, told = code_of_empty_call(channel, GET_JOB, None, content=at_bound)
                assert taken is grpc.StatusCode.OK, told
                refused, told = code_of_empty_call(channel, GET_JOB, None, content=beyond)
                assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert told.startswith("SERVER: Sent message larger")
        finally:
            server.stop(None).wait()


def test_no_method_takes_a_message_beyond_the_bound_and_each_kind_takes_one_at_the_bound(address: str) -> None:
    at_bound, beyond = padded(RECEIVED_MESSAGE_BYTES_MAX), padded(RECEIVED_MESSAGE_BYTES_MAX + 1)
    assert (len(at_bound), len(beyond)) == (RECEIVED_MESSAGE_BYTES_MAX, RECEIVED_MESSAGE_BYTES_MAX + 1)
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        for method in METHODS:
            if method.endswith(OF_EACH_KIND):
                taken, told = code_of_empty_call(channel, method, None, content=at_bound)
                assert taken not in (*FAILURES, grpc.StatusCode.RESOURCE_EXHAUSTED), (method, taken, told)
            refused, told = code_of_empty_call(channel, method, None, content=beyond)
            assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED, (method, refused, told)


def test_who_sends_too_much_reads_how_much_it_was_and_what_to_do(address: str) -> None:
    tasks = [scheduling_pb2.ArrayTask(index=index, values={"text": "x" * 4_000}) for index in range(9_000)]
    with open_channel(ChannelOptions(address=address)) as channel:
        client = SchedulerClient(channel, address=address, timeout_s=60)
        with pytest.raises(NotFeasibleError, match=r"3\d\.\d MiB.*32 MiB") as refused:
            client.submit_array(scheduling_pb2.JobSpec(name="t", command=["python"]), tasks)
    assert "send less at once" in refused.value.remedy


def test_a_list_of_jobs_with_large_commands_comes_in_answers_that_are_no_larger_than_a_page(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES_MAX", 1_000_000)
    spec = scheduling_pb2.JobSpec(name="t", command=["python", "x" * 100_000], working_directory="/tmp", held=True)
    with grpc.insecure_channel(address) as channel:
        SchedulerClient(channel, address=address, timeout_s=60).submit_array(
            spec, [scheduling_pb2.ArrayTask(index=index) for index in range(30)]
        )
        stub, seen, sizes, token = scheduling_pb2_grpc.SchedulingServiceStub(channel), list[str](), list[int](), ""
        while token or not sizes:
            answer = stub.ListJobs(scheduling_pb2.ListJobsRequest(page_size=1_000, page_token=token), timeout=60)
            seen += [job.job_id for job in answer.jobs]
            sizes.append(answer.ByteSize())
            token = answer.next_page_token
    assert len(set(seen)) == len(seen) == 30
    assert (len(sizes), max(sizes) < 1_100_000) == (4, True)
