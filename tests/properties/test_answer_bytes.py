"""Bytes of an answer are read as the message that has the same values set field by field, whatever the values."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.memory_states import MemoryStates
from predictor_service.grpc_api.answer_bytes import graph_summary, write_answer
from predictor_service.inference.records import Contribution, Estimate, JobAnswer, Level, MicroBatchEstimate, Notice
from tests.support.measured_dataset import graphs

GRAPH = describe_graph(graphs()["medium"])
FLOATS = st.floats(allow_nan=False)
WORDS = st.text(max_size=200)
LONG_WORDS = st.builds(lambda word, times: word * times, WORDS, st.sampled_from([1, 40]))
CONTRIBUTIONS = st.builds(Contribution, feature=WORDS, feature_value=FLOATS, contribution=FLOATS)
ESTIMATES = st.builds(
    Estimate,
    value=FLOATS,
    lower=FLOATS,
    upper=FLOATS,
    confidence=FLOATS,
    level=st.sampled_from(Level),
    in_domain=st.booleans(),
    upper_99=st.none() | FLOATS,
    explanation=st.lists(CONTRIBUTIONS, max_size=3).map(tuple),
    range_not_calibrated=st.booleans(),
    unusual_features=st.lists(LONG_WORDS, max_size=3).map(tuple),
)
WHOLE = st.integers(0, (1 << 63) - 1)
ANSWERS = st.builds(
    JobAnswer,
    prediction_id=WORDS,
    model_version=WORDS,
    utilization_ratio=ESTIMATES,
    sm_activity_ratio=st.none() | ESTIMATES,
    memory_bytes=ESTIMATES,
    step_ms=ESTIMATES,
    fits=st.booleans(),
    largest_batch_that_fits=st.none() | WHOLE,
    micro_batches=st.lists(
        st.builds(
            MicroBatchEstimate,
            micro_batch_size=WHOLE,
            accumulation_steps=WHOLE,
            memory_bytes=ESTIMATES,
            step_ms=ESTIMATES,
        ),
        max_size=2,
    ),
    graph=st.just(GRAPH),
    device_memory_bytes=WHOLE,
    warnings=st.lists(st.builds(Notice, code=WORDS, message=LONG_WORDS), max_size=3).map(tuple),
    job_key=WORDS,
    device=WORDS,
    device_is_generic=st.booleans(),
    memory_states=st.none()
    | st.builds(MemoryStates, low_bytes=WHOLE, extra_bytes=WHOLE, high_state_ratio=st.floats(0, 1)),
)


def estimate_message(estimate: Estimate) -> resources_pb2.Estimate:
    plain: dict[str, Any] = estimate._asdict()
    plain["level"] = int(estimate.level)
    plain["explanation"] = [
        {"feature": item.feature, "feature_value": item.feature_value, "contribution": item.contribution}
        for item in estimate.explanation
    ]
    return resources_pb2.Estimate(**plain)


def set_field_by_field(answer: JobAnswer) -> prediction_pb2.PredictJobResponse:
    return prediction_pb2.PredictJobResponse(
        prediction_id=answer.prediction_id,
        model_version=answer.model_version,
        utilization_ratio=estimate_message(answer.utilization_ratio),
        utilization_metric=resources_pb2.UTILIZATION_METRIC_BUSY_TIME,
        sm_activity_ratio=estimate_message(answer.sm_activity_ratio) if answer.sm_activity_ratio else None,
        memory_bytes=estimate_message(answer.memory_bytes),
        step_ms=estimate_message(answer.step_ms),
        fits=answer.fits,
        largest_batch_size_that_fits=answer.largest_batch_that_fits,
        micro_batches=[
            prediction_pb2.MicroBatchEstimate(
                micro_batch_size=item.micro_batch_size,
                accumulation_steps=item.accumulation_steps,
                memory_bytes=estimate_message(item.memory_bytes),
                step_ms=estimate_message(item.step_ms),
            )
            for item in answer.micro_batches
        ],
        graph=graph_summary(answer.graph),
        device_memory_bytes=answer.device_memory_bytes,
        warnings=[resources_pb2.Warning(code=notice.code, message=notice.message) for notice in answer.warnings],
        job_key=answer.job_key,
        device=answer.device,
        device_is_generic=answer.device_is_generic,
        memory_states=resources_pb2.MemoryStates(**answer.memory_states._asdict()) if answer.memory_states else None,
    )


@given(answer=ANSWERS)
def test_bytes_are_read_as_the_message_with_every_field_set_by_name(answer: JobAnswer) -> None:
    expected = set_field_by_field(answer)
    found = prediction_pb2.PredictJobResponse.FromString(write_answer(answer))
    assert found == expected
    assert found.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_every_field_of_the_contract_is_among_those_compared() -> None:
    """A field that is added later is written here and in `answer_bytes`, or left out knowingly."""
    assert {
        message.name: len(message.fields)
        for message in (
            resources_pb2.Estimate.DESCRIPTOR,
            prediction_pb2.PredictJobResponse.DESCRIPTOR,
            prediction_pb2.MicroBatchEstimate.DESCRIPTOR,
        )
    } == {"Estimate": 10, "PredictJobResponse": 17, "MicroBatchEstimate": 4}
