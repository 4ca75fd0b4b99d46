"""The features of a graph at one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from predictor_service.features.graphs.affine import FloatArray
from predictor_service.features.graphs.operator_families import OperatorFamily


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphFeatures:
    """What a training step of this graph has to do and to hold, forward pass only unless stated otherwise.

    Types are those of the export (usually 32 bits): a job in another precision scales the bytes itself.

    Attributes:
        batch: Samples per step.
        parameters: Trained numbers.
        parameter_bytes: Their size.
        buffers: Running statistics, not trained.
        buffer_bytes: Their size.
        forward_macs: Multiply-accumulates of convolutions, matrix products, recurrent layers, attention.
        forward_flops: Operations of all operators; one multiply-accumulate counts as two.
        activation_bytes_saved: Kept from the forward pass for the backward pass; graph inputs not included.
        activation_bytes_saved_mixed: The same under automatic mixed precision, copies in another width included.
        input_bytes: Graph inputs.
        output_bytes: Graph outputs.
        traffic_bytes: Read and written by all operators when nothing stays in a cache.
        reserved_bytes: What PyTorch's allocator takes from the device for the tensors of a training step, workspaces of
            convolutions included and parameters and their gradients not; 0 = not known. See `allocator_replay`.
        largest_unfolded_bytes: Largest input of a convolution when that is computed as one matrix product.
        widest_activation_bytes: Largest output of one operator.
        depth: Multiplying operators on the longest path.
        recurrent_steps: Steps that wait for the one before: of recurrent layers, summed over layers and directions, and
            what a loop's body runs more often than once.
        lstm_steps: Those among them of LSTM layers, which some libraries run in one call.
        nodes: Operators that run on the device; views, constants and shape arithmetic left out.
        unshaped_nodes: Those among them whose cost is unknown and counted as 0.
        operator_counts: Operators by family, all families present.
        operator_families: Family of each operator, in order of execution.
        operator_flops: Operations of each operator, shape (nodes,).
        operator_traffic_bytes: Bytes moved by each operator, shape (nodes,).
    """

    batch: int
    parameters: int
    parameter_bytes: int
    buffers: int
    buffer_bytes: int
    forward_macs: int
    forward_flops: int
    activation_bytes_saved: int
    activation_bytes_saved_mixed: int
    input_bytes: int
    output_bytes: int
    traffic_bytes: int
    largest_unfolded_bytes: int
    widest_activation_bytes: int
    depth: int
    recurrent_steps: int
    lstm_steps: int
    nodes: int
    unshaped_nodes: int
    operator_counts: Mapping[OperatorFamily, int]
    operator_families: tuple[OperatorFamily, ...]
    operator_flops: FloatArray
    operator_traffic_bytes: FloatArray
    reserved_bytes: int = 0
