"""What was sent or stored as bytes of the contract is understood by the contract as it is."""

from __future__ import annotations

import json

from google.protobuf.unknown_fields import UnknownFieldSet

from tests.goldens.filled_messages import contract_messages, encoded, message_class
from tests.goldens.write_goldens import GOLDENS
from tests.support.cases import for_each

VARIANTS: dict[str, list[str]] = json.loads((GOLDENS / "wire_messages.json").read_text())
RENAMED: dict[str, str] = {
    "cotenant.v1.MeasuredStretch": "cotenant.v1.MeasurementWindow",
    "cotenant.v1.RecordStretchesRequest": "cotenant.v1.RecordMeasurementWindowsRequest",
    "cotenant.v1.RecordStretchesResponse": "cotenant.v1.RecordMeasurementWindowsResponse",
    "cotenant.v1.RefusedStretch": "cotenant.v1.RefusedMeasurementWindow",
    "cotenant.v1.SubBatchEstimate": "cotenant.v1.MicroBatchEstimate",
    "cotenant.v1.SubBatchPoint": "cotenant.v1.MicroBatchMemory",
    "cotenant.v1.StepPoint": "cotenant.v1.StepTime",
    "cotenant.v1.Neighbour": "cotenant.v1.CoLocatedJob",
}
"""Messages that have another name now, by the name in the golden; numbers and types of their fields are as before."""


@for_each("name", VARIANTS)
def test_bytes_of_a_message_are_read_and_written_as_before(name: str) -> None:
    descriptor = contract_messages()[RENAMED.get(name, name)]
    for text in VARIANTS[name]:
        message = message_class(descriptor).FromString(bytes.fromhex(text))
        assert len(UnknownFieldSet(message)) == 0
        assert encoded(message).hex() == text


def test_no_new_name_hides_an_old_message() -> None:
    assert set(RENAMED) <= set(VARIANTS)
    assert len(set(RENAMED.values())) == len(RENAMED)
