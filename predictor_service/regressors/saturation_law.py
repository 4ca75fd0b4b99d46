"""Utilization by how long a step keeps a GPU busy at its peaks, and what any other regressor makes of the rest.

    logit(share) = level + slope x ln(busy milliseconds)        share += mean of corrections(columns)

The form, and what level and slope are before any row, are those of `features/uncalibrated_utilization.py`, which
public campaigns taught. Rows of one architecture err alike: a few of them move the law little, hundreds as far as they
say. A correction far from all of its rows leaves the law, not a mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper
from scipy.optimize import least_squares

from predictor_service.features import uncalibrated_utilization
from predictor_service.features.devices import DeviceType
from predictor_service.features.job_features import optimizer_ms
from predictor_service.regressors.interface import FeatureArray, FloatArray, Regressor
from predictor_service.regressors.onnx_names import serialize_with_canonical_names

COLUMNS: Final = ("log_flops", "log_intensity", "log_parameters", "optimizer_slots", "is_training")
"""What busy time is made of."""
_OPSET: Final = 15
"""The least that a correction is converted to; operators of the law are the same in later ones."""
_IR_VERSION: Final = 8
_WEIGHT_BYTES: Final = 4.0
_PASSES_MORE: Final = 2.0
"""A backward pass costs about two forward passes."""
_BUSY_MS_MIN: Final = 1e-6
_LEVEL_DEVIATION: Final = 0.3
_SLOPE_DEVIATION: Final = 0.1
_ERROR_DEVIATION: Final = 0.25
"""Of a row from the law: twice what it is, as the few batches of one architecture err alike."""


class _Costs(NamedTuple):
    """Milliseconds of one operation, one byte of traffic, and the update of one weight: without slots, and for each."""

    operation: float
    byte: float
    weight: float
    slot: float


class SaturationLaw:
    """The law with its two constants fitted, alone or under corrections.

    Args:
        columns: Names of the columns that it will see, `COLUMNS` among them.
        device: Gives the peaks, those of 32 bits: columns state no precision.
        corrections: Each learns what the law misses, unfitted, and their mean counts; none = the law alone.
    """

    def __init__(self, columns: Sequence[str], device: DeviceType, *corrections: Regressor) -> None:
        self._places = [columns.index(name) for name in COLUMNS]
        without_slots_ms, with_slot_ms = (optimizer_ms(_WEIGHT_BYTES, slots, device) for slots in (0.0, 1.0))
        self._costs = _Costs(
            operation=1e3 / device.peak("fp32"),
            byte=1e3 / device.memory_bytes_per_s,
            weight=without_slots_ms,
            slot=with_slot_ms - without_slots_ms,
        )
        self._corrections = corrections
        self._level, self._slope = 0.0, 0.0
        self._columns = len(columns)

    def fit(self, features: FeatureArray, target: FloatArray) -> Self:
        """Learns from rows; see `Regressor`. The target is a share of the time that is not spent waiting for input."""
        law, log_busy = uncalibrated_utilization.LAW, self._log_busy(features)

        def misfit(constants: FloatArray) -> FloatArray:
            errors = (_share(constants[0] + constants[1] * log_busy) - target) / _ERROR_DEVIATION
            moved = [(constants[0] - law.level) / _LEVEL_DEVIATION, (constants[1] - law.slope) / _SLOPE_DEVIATION]
            return np.concatenate([errors, moved])

        start = np.array([law.level, law.slope])
        found = least_squares(misfit, start, bounds=([-np.inf, 0.0], [np.inf, np.inf]), loss="soft_l1").x
        self._level, self._slope = float(found[0]), float(found[1])
        missed = target - self._law(features)
        for correction in self._corrections:
            correction.fit(features, missed)
        return self

    def predict(self, features: FeatureArray) -> FloatArray:
        """Returns one value per row; see `Regressor`."""
        expected = self._law(features)
        if not self._corrections:
            return expected
        more = [correction.predict(features) for correction in self._corrections]
        return np.asarray(expected + np.mean(more, axis=0))

    def to_onnx(self) -> bytes:
        """Returns law and corrections as one ONNX file."""
        nodes, constants = self._onnx_law()
        initializers = [
            numpy_helper.from_array(np.asarray(value, dtype=np.float32), f"law_{name}")
            for name, value in constants.items()
        ]
        whole = {"places": self._places, "sizes": [1] * len(COLUMNS), "column": [-1, 1]}
        initializers += [
            numpy_helper.from_array(np.array(value, dtype=np.int64), f"law_{name}") for name, value in whole.items()
        ]
        versions, parts = {"": _OPSET}, list[str]()
        for place, correction in enumerate(self._corrections):
            nested = _load_apart(correction, place)
            initializers += list(nested.graph.initializer)
            nodes += list(nested.graph.node)
            parts.append(f"law_more_{place}")
            nodes.append(helper.make_node("Reshape", [nested.graph.output[0].name, "law_column"], parts[-1:]))
            for each in nested.opset_import:
                versions[each.domain] = max(each.version, versions.get(each.domain, 0))
        nodes += _sum_of(parts)
        graph = helper.make_graph(
            nodes,
            "regressor",
            [helper.make_tensor_value_info("features", TensorProto.FLOAT, [None, self._columns])],
            [helper.make_tensor_value_info("law_value", TensorProto.FLOAT, [None, 1])],
            initializer=initializers,
        )
        operator_sets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
        model = helper.make_model(graph, opset_imports=operator_sets, ir_version=_IR_VERSION)
        return serialize_with_canonical_names(model)

    def _law(self, features: FeatureArray) -> FloatArray:
        return _share(self._level + self._slope * self._log_busy(features))

    def _log_busy(self, features: FeatureArray) -> FloatArray:
        log_flops, log_intensity, log_parameters, slots, training = features[:, self._places].astype(np.float64).T
        operations_ms = np.exp(log_flops) * self._costs.operation
        traffic_ms = np.exp(log_flops - log_intensity) * self._costs.byte
        update_ms = np.exp(log_parameters) * (self._costs.weight + slots * self._costs.slot)
        busy_ms = (1.0 + _PASSES_MORE * training) * (operations_ms + traffic_ms) + training * update_ms
        return np.asarray(np.log(np.maximum(busy_ms, _BUSY_MS_MIN)))

    def _onnx_law(self) -> tuple[list[onnx.NodeProto], dict[str, object]]:
        """Nodes that end in `law_share`, and their constants; each column is of shape (rows, 1)."""
        picked = [f"law_{name}" for name in COLUMNS]
        flops, intensity, parameters, slots, training = picked
        steps = [
            ("Exp", [flops], ["law_operations"]),
            ("Mul", ["law_operations", "law_operation"], ["law_operations_ms"]),
            ("Sub", [flops, intensity], ["law_log_bytes"]),
            ("Exp", ["law_log_bytes"], ["law_bytes"]),
            ("Mul", ["law_bytes", "law_byte"], ["law_traffic_ms"]),
            ("Add", ["law_operations_ms", "law_traffic_ms"], ["law_pass_ms"]),
            ("Mul", [training, "law_passes_more"], ["law_more_passes"]),
            ("Add", ["law_more_passes", "law_one"], ["law_passes"]),
            ("Mul", ["law_pass_ms", "law_passes"], ["law_passes_ms"]),
            ("Mul", [slots, "law_slot"], ["law_slots_ms"]),
            ("Add", ["law_slots_ms", "law_weight"], ["law_update_each_ms"]),
            ("Exp", [parameters], ["law_weights"]),
            ("Mul", ["law_weights", "law_update_each_ms"], ["law_update_all_ms"]),
            ("Mul", ["law_update_all_ms", training], ["law_update_ms"]),
            ("Add", ["law_passes_ms", "law_update_ms"], ["law_sum_ms"]),
            ("Max", ["law_sum_ms", "law_least"], ["law_busy_ms"]),
            ("Log", ["law_busy_ms"], ["law_log_busy"]),
            ("Mul", ["law_log_busy", "law_slope"], ["law_slope_part"]),
            ("Add", ["law_slope_part", "law_level"], ["law_logit"]),
            ("Sigmoid", ["law_logit"], ["law_share"]),
        ]
        nodes = [
            helper.make_node("Gather", ["features", "law_places"], ["law_picked"], axis=1),
            helper.make_node("Split", ["law_picked", "law_sizes"], picked, axis=1),
            *(helper.make_node(kind, inputs, outputs) for kind, inputs, outputs in steps),
        ]
        constants: dict[str, object] = {**self._costs._asdict(), "passes_more": _PASSES_MORE, "one": 1.0}
        return nodes, {**constants, "least": _BUSY_MS_MIN, "level": self._level, "slope": self._slope}


def _load_apart(correction: Regressor, place: int) -> onnx.ModelProto:
    """A correction whose names are those of no other one; it reads the same input."""
    model = onnx.load_from_string(correction.to_onnx())
    return compose.add_prefix(model, f"part_{place}_", rename_inputs=False)


def _sum_of(parts: Sequence[str]) -> list[onnx.NodeProto]:
    """Nodes that end in `law_value`: the law and the mean of its corrections."""
    if not parts:
        return [helper.make_node("Identity", ["law_share"], ["law_value"])]
    if len(parts) == 1:
        return [helper.make_node("Add", ["law_share", *parts], ["law_value"])]
    return [
        helper.make_node("Mean", list(parts), ["law_more"]),
        helper.make_node("Add", ["law_share", "law_more"], ["law_value"]),
    ]


def _share(logit: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logit, -_LOGIT_MAX, _LOGIT_MAX))))


_LOGIT_MAX: Final = 60.0
