"""Graphs by content hash: their descriptions in memory, their stripped bytes on disk, both bounded."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from cotenant.graph_file import graph_sha256 as name_graph
from cotenant.graph_file import strip_weights
from predictor_service.errors import StoreFullError, UnknownGraphError
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.features.graphs.graph_limits import DEFAULT_LIMITS
from predictor_service.inference.measured_graph import MeasuredGraph

DESCRIPTIONS_MAX: Final = 512
DESCRIPTION_NODES_MAX: Final = 200_000
"""Operators kept in memory over all graphs; up to 450 bytes each with their figures at every power of two."""
DISK_BYTES_MAX: Final = 1 << 30

_PARTIAL: Final = ".partial-"
_logger = logging.getLogger(__name__)
_Key = tuple[str, tuple[tuple[str, int], ...]]


class GraphDescriber(Protocol):
    """Turns bytes into a description, in bounded time and memory."""

    def describe(self, data: bytes, bindings: Mapping[str, int] | None = None) -> GraphDescription:
        """Describes a graph."""
        ...


class GraphLibrary:
    """Describes each graph once; safe for many threads.

    Args:
        describer: Does the work.
        folder: Where stripped graphs are kept so that their hashes survive a restart; None = in memory only. Of more
            than `DISK_BYTES_MAX` the least recently used are deleted.
    """

    def __init__(self, describer: GraphDescriber, folder: Path | None) -> None:
        self._describer = describer
        self._folder = folder
        self._lock = threading.Lock()
        self._descriptions: OrderedDict[_Key, MeasuredGraph] = OrderedDict()
        self._nodes = 0
        self._stripped_sha256: OrderedDict[str, str] = OrderedDict()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.glob(f"{_PARTIAL}*"):  # what a service that was killed was writing
                path.unlink(missing_ok=True)

    def describe(self, data: bytes, bindings: Mapping[str, int]) -> MeasuredGraph:
        """Describes the graph in these bytes and keeps it under its hash.

        Raises:
            PredictorError: As the describer.
        """
        sent_sha256 = hashlib.sha256(data).hexdigest()
        known = self._recall(self._stripped_sha256.get(sent_sha256, sent_sha256), bindings)
        if known is not None:
            return known
        description = self._describer.describe(data, bindings)
        measured = self._remember(description, bindings)
        with self._lock:
            self._stripped_sha256[sent_sha256] = description.graph_sha256
            while len(self._stripped_sha256) > DESCRIPTIONS_MAX:
                self._stripped_sha256.popitem(last=False)
        self._keep(data, sent_sha256, description.graph_sha256)
        return measured

    def keep(self, data: bytes) -> str:
        """Keeps a graph whose dimensions a later request will bind.

        Args:
            data: A graph that the describer refused only for its unbound dimensions.

        Returns:
            Its hash.

        Raises:
            StoreFullError: The disk takes no more.
        """
        stripped = strip_weights(data, field_limit=DEFAULT_LIMITS.protobuf_fields)
        sha256 = name_graph(stripped)
        try:
            self._store(sha256, stripped)
        except OSError as error:
            raise StoreFullError(
                f"the graph is not kept: {error.strerror}", remedy="check room and rights of the state folder"
            ) from error
        return sha256

    def remembers(self, graph_sha256: str, bindings: Mapping[str, int]) -> bool:
        """Whether a graph can be found without reading its file again."""
        return self._recall(graph_sha256, bindings) is not None

    def find(self, graph_sha256: str, bindings: Mapping[str, int]) -> MeasuredGraph:
        """Returns the description of a graph that was sent before.

        Raises:
            UnknownGraphError: It was never sent, or is no longer kept.
        """
        known = self._recall(graph_sha256, bindings)
        if known is not None:
            return known
        data = self._read(graph_sha256)
        if data is None:
            raise UnknownGraphError(
                f"no graph is stored under {graph_sha256[:64]!r}", remedy="send it with UploadGraph first"
            )
        description = self._describer.describe(data, bindings)
        return self._remember(description, bindings)

    def _keep(self, data: bytes, sent_sha256: str, graph_sha256: str) -> None:
        """Stores what was described; without a folder nothing has to be stripped for it."""
        if self._folder is None:
            return
        same = sent_sha256 == graph_sha256
        stripped = data if same else strip_weights(data, field_limit=DEFAULT_LIMITS.protobuf_fields)
        try:
            self._store(graph_sha256, stripped)
        except OSError as error:  # it is in memory; a client that names it after a restart must send it again
            remedy = f"check room and rights of {self._folder}"
            _logger.error("graph_not_stored", extra={"reason": str(error), "remedy": remedy})

    def _recall(self, graph_sha256: str, bindings: Mapping[str, int]) -> MeasuredGraph | None:
        key = (graph_sha256, tuple(sorted(bindings.items())))
        with self._lock:
            if key in self._descriptions:
                self._descriptions.move_to_end(key)
            return self._descriptions.get(key)

    def _remember(self, description: GraphDescription, bindings: Mapping[str, int]) -> MeasuredGraph:
        key = (description.graph_sha256, tuple(sorted(bindings.items())))
        with self._lock:
            if key not in self._descriptions:
                self._descriptions[key] = MeasuredGraph(description)
                self._nodes += description.nodes
            measured = self._descriptions[key]
            while len(self._descriptions) > DESCRIPTIONS_MAX or (
                self._nodes > DESCRIPTION_NODES_MAX and len(self._descriptions) > 1
            ):
                self._nodes -= self._descriptions.popitem(last=False)[1].description.nodes
            return measured

    def _read(self, graph_sha256: str) -> bytes | None:
        if self._folder is None or len(graph_sha256) != 64 or not graph_sha256.isalnum():
            return None
        path = self._folder / f"{graph_sha256}.onnx"
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        return data if hashlib.sha256(data).hexdigest() == graph_sha256 else None

    def _store(self, graph_sha256: str, data: bytes) -> None:
        """Writes a file, unless it is there and whole."""
        if self._folder is None or self._read(graph_sha256) is not None:
            return
        partial = self._folder / f"{_PARTIAL}{uuid.uuid4().hex}"
        try:
            partial.write_bytes(data)
            partial.replace(self._folder / f"{graph_sha256}.onnx")
        finally:
            partial.unlink(missing_ok=True)
        with self._lock:
            self._make_room(self._folder)

    def _make_room(self, folder: Path) -> None:
        files = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in folder.glob("*.onnx"))
        excess_bytes = sum(size for _, size, _ in files) - DISK_BYTES_MAX
        for _, size, path in files:
            if excess_bytes <= 0:
                return
            path.unlink(missing_ok=True)
            excess_bytes -= size
