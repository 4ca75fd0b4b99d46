"""A window under MPS never changes an answer about jobs that take turns, nor the reverse, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.pair_table import PairTable
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import PairJob, PairsAnswer, PairsQuestion
from predictor_service.profile_store.measurement_window import MeasurementWindow, StoredMeasurementWindow
from tests.support import measurement_windows

_JOBS = 3


class Measured(NamedTuple):
    """A window of a job, alone or with one other."""

    victim: int
    other: int | None
    window_ms: int
    under_mps: bool
    is_doubtful: bool


class _NoVersion:
    def current(self) -> None:
        return None


_PLACES = st.integers(0, _JOBS - 1)
_MEASURED = st.lists(
    st.builds(Measured, _PLACES, st.none() | _PLACES, st.integers(10_000, 90_000), st.booleans(), st.booleans()),
    max_size=16,
)


def _window(number: int, measured: Measured) -> MeasurementWindow:
    return measurement_windows.window(
        number,
        job=measurement_windows.job(measured.victim),
        others=() if measured.other is None else (measurement_windows.job(measured.other),),
        window_ms=measured.window_ms,
        under_mps=measured.under_mps,
        quality_flags=("unsteady",) if measured.is_doubtful else (),
    )


def _answer(windows: Sequence[MeasurementWindow], sharing: DeviceSharing, graphs: GraphLibrary) -> PairsAnswer:
    predictor = Predictor(graphs, _NoVersion())
    predictor.learn_windows(StoredMeasurementWindow(window=window, at_ms=1) for window in windows)
    jobs = tuple(
        PairJob(
            job_id=f"j{number}",
            settings=JobSettings(global_batch_size=1),
            known_step_ms=10.0,
            known_utilization_ratio=0.3 * (number + 1),
            known_memory_bytes=1e6,
            measured_key=measurement_windows.job(number).key,
        )
        for number in range(_JOBS)
    )
    return predictor.predict_pairs(PairsQuestion(device="cpu-standin", jobs=jobs, sharing=sharing))


@settings(deadline=None)
@given(measured=_MEASURED)
def test_the_answer_about_one_way_is_as_if_nothing_had_been_measured_the_other_way(measured: list[Measured]) -> None:
    graphs = GraphLibrary(InProcessDescriber(), None)
    windows = [_window(number, each) for number, each in enumerate(measured)]
    for way in (DeviceSharing.TIME_SLICING, DeviceSharing.MPS):
        own = [window for window in windows if window.sharing is way]
        found, expected = _answer(windows, way, graphs), _answer(own, way, graphs)
        for name in ("slowdown_ratio", "lower", "upper", "level", "in_domain", "times_measured"):
            assert getattr(found, name).tolist() == getattr(expected, name).tolist(), (way, name)
    # Nobody who does not say a way is answered as if jobs took turns, which cost more before a pair was measured.
    unsaid, turns = (
        _answer([], way, graphs).slowdown_ratio for way in (DeviceSharing.UNSTATED, DeviceSharing.TIME_SLICING)
    )
    assert unsaid.tolist() == _answer([], DeviceSharing.MPS, graphs).slowdown_ratio.tolist()
    assert (turns > unsaid).all()


@given(measured=_MEASURED)
def test_every_window_of_a_listed_pair_is_in_a_row_of_its_way(measured: list[Measured]) -> None:
    table = PairTable()
    learned = table.learn_windows(
        StoredMeasurementWindow(window=_window(number, each), at_ms=1) for number, each in enumerate(measured)
    )
    rows = table.rows()
    assert sum(row.seen.times for row in rows) == learned
    assert all(row.sharing for row in rows)
