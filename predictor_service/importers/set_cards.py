"""The card of a shipped set: where it comes from, under which licence, and what to doubt in its rows."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from predictor_service.errors import TrainingDataError
from predictor_service.importers.catalogue import IMPORTERS
from predictor_service.importers.imported_set import ImportedSet

UPSTREAM_LICENCE: Final = "LICENSE-upstream.txt"
_LICENCE: Final = "LICENSE"
_CARD: Final = "README.md"
_GPUMEMNET_LICENCE: Final = (
    "CC-BY-4.0, on the author's word: the repository has no LICENSE file, and its first author publishes the same "
    'data as "GPU-Resources-Estimation-for-Deep-Learning-Training-Tasks" under CC-BY-4.0, "released as part of the '
    'GPUMemNet repository". Attribution: E. Yousefzadeh-Asl-Miandoab et al., IT University of Copenhagen, '
    "arXiv 2602.17817. Changed: column names, parsed columns, flags; what has no place in the schema is left out."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a set was published.

    Attributes:
        source: Repository, commit and path.
        licence: A sentence where the name of the licence does not say it all; else empty.
    """

    source: str
    licence: str = ""


ORIGINS: Final[Mapping[str, Origin]] = {
    "alnair": Origin(
        source="CentaurusInfra/alnair @ 3a1e6eb50fcd: alnair-profiler/test/packing-tests/Job Interference Report.pptx "
        "(pictures, transcribed by hand), open-data/gpu-sharing/Dataset.csv"
    ),
    "gavel": Origin(
        source="stanford-futuredata/gavel @ 48eceb7add0d: scheduler/oracle_throughputs.json (2019-08-raw); "
        "@ c4fa40097339: scheduler/simulation_throughputs.json (2020-05-simulation), "
        "scheduler/physical_cluster_throughputs.json (2020-06-physical)"
    ),
    "gpumemnet": Origin(
        source="itu-rad/GPUMemNet @ f01eb0592e1b: Datasets/MLP/mlp_data_step1.csv, mlp_data_step2.csv, "
        "Related_works/FakeTensor/fake_tensor.xlsx, Related_works/Horus/horus_formula_not_working.xlsx, "
        "Test_Pipeline/GPUMemNet_CNN.xlsx; @ f5a3f5dd8cb0: cnn_data_step1.csv",
        licence=_GPUMEMNET_LICENCE,
    ),
    "isacpp": Origin(source="self-cream/ISACPP @ 3cd547ae9745: results/main.py (figures 3, 4, 5 of the manuscript)"),
    "miso": Origin(
        source="boringlee24/socc22-miso @ 39b1ee69d73c: mps/configs/util_collection/*.json, mps/models/logs/mig/*.json"
    ),
    "nanogpt_curves": Origin(source="KellerJordan/modded-nanogpt @ f411b3d346aa: records/**"),
    "pollux": Origin(
        source="petuum/adaptdl @ c793c7089bd3 (osdi21-artifact): simulator/traces/*",
        licence="Apache-2.0, the licence of the repository's main branch; the artifact's branch has no file of its own",
    ),
    "salus": Origin(source="SymbioticLab/Salus @ 7b7f5e065188: tests/workloads.csv"),
    "timm_bench": Origin(source="huggingface/pytorch-image-models @ aa4b5850c154: results/benchmark-*.csv"),
    "torchvision_bench": Origin(source="ryujaehun/pytorch-gpu-benchmark @ 3f47a9e2a43c: results/**.csv"),
}


def write_card(folder: Path, name: str, source: Path, imported: ImportedSet) -> list[Path]:
    """Writes the card of a set and copies its licence next to it.

    Args:
        folder: Of the written set.
        name: One of `IMPORTERS`.
        source: Folder that it was imported from; LICENSE-upstream.txt there is the licence.
        imported: Its rows.

    Returns:
        The files.

    Raises:
        TrainingDataError: The folder cannot be written.
    """
    card, licence = folder / _CARD, folder / _LICENCE
    title = f"# {name}: "
    if card.is_file() and not card.read_text(encoding="utf-8", errors="replace").startswith(title):
        raise TrainingDataError(f"{card} is no card of {name} and would be lost", remedy="name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        card.write_text("\n".join(_lines(name, imported, has_licence=(source / UPSTREAM_LICENCE).is_file())) + "\n")
        if not (source / UPSTREAM_LICENCE).is_file():
            return [card]
        shutil.copyfile(source / UPSTREAM_LICENCE, licence)
    except OSError as error:
        raise TrainingDataError(str(error), remedy="name a folder that can be written") from error
    return [card, licence]


def _lines(name: str, imported: ImportedSet, *, has_licence: bool) -> Iterator[str]:
    importer, origin = IMPORTERS[name], ORIGINS[name]
    yield f"# {name}: {importer.measures}"
    yield ""
    yield f"Source: {origin.source}."
    yield f"Licence: {origin.licence or importer.licence}" + (" See LICENSE." if has_licence else "")
    yield ""
    yield "Labels only, in profile schema version 1 (columns and units: `cotenant/profile_schema.py`): bytes,"
    yield "milliseconds, ratios from 0 to 1, a slowdown of 0.2 is 20 % slower. Figures of graphs are joined when rows"
    yield "are read: `graph_of` names a line of `datasets/timm_features` or `datasets/zoo_features`; graphs that are"
    yield "published as lists of layers have theirs in `graph_features.csv.gz`, computed by us. Rebuilt by"
    yield ""
    yield f"    cotenant datasets import {name} PATH -o FOLDER --labels-only"
    yield ""
    yield from _table("rows", _count_rows(imported))
    yield ""
    yield "Devices: " + (", ".join(sorted({row.device for row in imported.solo})) or "not stated in the curves") + "."
    yield ""
    yield f"Faults and what they mean: the module docstring of `predictor_service/importers/{name}.py`. Flags:"
    yield ""
    flags = Counter(flag for row in imported.solo for flag in row.quality_flags)
    flags.update(flag for row in imported.pairs for flag in row.quality_flags)
    yield from _table("quality_flags", flags) if flags else ["none"]


def _count_rows(imported: ImportedSet) -> Counter[str]:
    counts: Counter[str] = Counter()
    counts.update(f"alone, {row.campaign}, {row.status}" for row in imported.solo)
    counts.update(f"pairs, {row.campaign}, {row.status}" for row in imported.pairs)
    if imported.curves:
        counts["points of loss curves"] = len(imported.curves)
    return counts


def _table(title: str, counts: Counter[str]) -> Iterator[str]:
    yield f"| {title} | |"
    yield "|---|---|"
    for key, count in sorted(counts.items()):
        yield f"| {key} | {count:,} |"
