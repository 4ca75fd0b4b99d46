"""The parts of one checkpoint that the nodes of a gang have written, each for its own ranks: joined they are sealed.

A node keeps what its ranks declared last and what they declared before. Ranks declare the same steps and train none
alone, so that a rank that declares a step knows that all have declared the one before: one of the two is common.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.storage.durable_files import read_integer, read_text

NO_CHECKPOINT = "NO_CHECKPOINT"
"""There is no whole one; another attempt's may do."""


def joined_manifest(parts: Sequence[Mapping[str, object]]) -> bytes:
    """The manifest of the newest step of which the parts have the files of all ranks.

    Args:
        parts: The manifest of each node, with the one before under `previous`.

    Raises:
        CommandRefusedError: There is no such step.
    """
    generations = [one for part in parts for one in (part, part.get("previous")) if isinstance(one, Mapping)]
    for step in sorted({read_integer(one, "step", -1) for one in generations}, reverse=True):
        of_step = [one for one in generations if read_integer(one, "step", -1) == step]
        shards = sorted(_shards(of_step), key=lambda shard: read_integer(shard, "rank", -1))
        world_size = read_integer(of_step[0], "world_size")
        ranks = [read_integer(shard, "rank", -1) for shard in shards]
        if 0 < len(ranks) == world_size and ranks == list(range(len(ranks))):
            return json.dumps(_sealed(of_step[0], shards)).encode()
    raise CommandRefusedError(NO_CHECKPOINT, "its nodes have the files of all ranks of no step")


def _shards(manifests: Iterable[Mapping[str, object]]) -> list[dict[str, Any]]:
    found = [shard for one in manifests for shard in _list(one.get("shards"))]
    return [shard for shard in found if isinstance(shard, dict) and isinstance(shard.get("files"), list)]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _sealed(manifest: Mapping[str, object], shards: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    names = [name for shard in shards for name in shard["files"] if isinstance(name, str)]
    return {
        **{name: value for name, value in manifest.items() if name != "previous"},
        "shards": list(shards),
        "files": sorted(names),
        "bytes": sum(read_integer(shard, "bytes") for shard in shards),
        "sha256": hashlib.sha256("".join(read_text(shard, "sha256") for shard in shards).encode()).hexdigest(),
    }
