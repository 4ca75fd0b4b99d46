"""What a client can tell and ask about measurements of running jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cotenant.listing_pages import LIST_PAGE_SIZE, read_pages
from cotenant.v1 import prediction_pb2

if TYPE_CHECKING:
    from cotenant.v1.prediction_pb2_grpc import PredictionServiceStub

_Answer = TypeVar("_Answer")


class MeasurementCalls(ABC):
    """A part of `PredictorClient`, which has the stub and translates errors."""

    _stub: PredictionServiceStub

    @abstractmethod
    def _ask(self, call: Callable[[float], _Answer]) -> _Answer:
        """Call with a time limit in seconds."""

    def record_measurement_windows(
        self, request: prediction_pb2.RecordMeasurementWindowsRequest
    ) -> prediction_pb2.RecordMeasurementWindowsResponse:
        """Reports what was measured of running jobs; a window that is sent again counts once."""
        return self._ask(lambda timeout: self._stub.RecordMeasurementWindows(request, timeout=timeout))

    def list_measured_pairs(self, device: str = "") -> list[prediction_pb2.MeasuredPair]:
        """Returns the pairs of jobs that were measured co-located, by device type and keys.

        Args:
            device: This device type only; empty = all.
        """

        def read_page(token: str) -> tuple[Sequence[prediction_pb2.MeasuredPair], str]:
            request = prediction_pb2.ListMeasuredPairsRequest(device=device, page_size=LIST_PAGE_SIZE, page_token=token)
            page = self._ask(lambda timeout: self._stub.ListMeasuredPairs(request, timeout=timeout))
            return page.pairs, page.next_page_token

        return read_pages(read_page)
