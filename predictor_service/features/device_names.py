"""Which device type a name means: the full name, a short one such as "a100", or a type that the table lacks.

People leave out the maker, the memory and the form: "rtx 4090", "RTX-4090" and "nvidia geforce rtx4090" are one name.
One rule decides about a name that the table lacks. A name with its memory, as schedulers and agents always send it,
or with the maker in front, as NVML writes it, means a device that exists: the type is generic, and only what was stated
is known of it. Any other word is taken for a misspelling and refused with the closest known names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import hypot, log
from statistics import median
from typing import Final

from cotenant.device_facts import DeviceFacts
from predictor_service.errors import invalid_field
from predictor_service.features.cloud_machines import card_of_machine
from predictor_service.features.device_refusals import (
    is_of_another_kind,
    refuse_other_kind,
    refuse_several,
    refuse_slice_without_card,
    refuse_unknown,
    shares_memory_of_host,
)
from predictor_service.features.devices import (
    DEVICE_TYPES,
    GIBIBYTE,
    STANDIN_DEVICE,
    USUAL_TYPES,
    DeviceType,
    Generation,
    find_device_type,
    slice_of,
)

NAME_CHARACTERS_MAX: Final = 200
_NEAREST_MAX: Final = 5
_SIMILAR_RATIO: Final = 0.72
# Cards are sold by sizes that drivers report some per cent below, and people write GB for GiB.
_SAME_MEMORY_RATIO: Final = 0.12
_INSIGNIFICANT: Final = frozenset({"nvidia", "geforce", "tesla", "corporation", "gpu", "amd", "instinct", "radeon"})
_NAMES_ITS_MAKER: Final = re.compile(r"(nvidia|amd|intel)[\s_-]+\S.*", re.IGNORECASE)
_MEMORY: Final = re.compile(r"\d+gb")
_MAY_BE_LEFT_OUT: Final = re.compile(r"\d+gb|sxm\d?|pcie|hbm\d?|blackwell|workstation|edition|quadro|generation")
# RTX 6000 is said of that card as of one three generations older: it is asked back.
_GENERATION_IN_A_NAME: Final = ("ada", "generation")
_SERIES: Final = frozenset({"rtx", "gtx", "rx"})
# What people write, and the full name does not have.
_ALSO_WRITTEN: Final = {
    "NVIDIA H100 80GB HBM3": ("H100 SXM5 80GB HBM3", "H100 mega 80GB"),
    "NVIDIA H200": ("H200 SXM5 141GB",),
    "NVIDIA B300 SXM6 AC": ("B300",),
    "AMD Instinct MI250X": ("MI250X MI250",),
    "AMD Instinct MI300X": ("MI300X OAM",),
}
_GENERATION_WORDS: Final = {"ada": Generation.ADA, "blackwell": Generation.BLACKWELL, "instinct": Generation.CDNA}
_NUMBERED_GENERATIONS: Final = (
    (r"rtx 50\d\d.*", Generation.BLACKWELL),
    (r"rtx 40\d\d.*", Generation.ADA),
    (r"(rtx 30\d\d|rtx a\d|a\d).*", Generation.AMPERE),
    (r"(rtx 20\d\d|gtx 16\d\d|quadro rtx).*", Generation.TURING),
    (r"(gtx 10\d\d|(quadro )?p\d|titan xp?\b).*", Generation.PASCAL),
    (r"((quadro )?g?v\d|titan v\b).*", Generation.VOLTA),
    (r"t\d.*", Generation.TURING),
    (r"((quadro )?m\d|gtx 9\d\d).*", Generation.MAXWELL),
    (r"((quadro )?k\d|gtx [67]\d\d).*", Generation.KEPLER),
    (r"l\d.*", Generation.ADA),
    (r"mi\d.*", Generation.CDNA),
    (r"(h\d|gh\d).*", Generation.HOPPER),
    (r"(b\d|gb\d).*", Generation.BLACKWELL),
)
# From these on, the newest first: generations, and cores for 32-bit arithmetic in a multiprocessor.
_CAPABILITIES: Final = (
    (100, Generation.BLACKWELL),
    (90, Generation.HOPPER),
    (89, Generation.ADA),
    (80, Generation.AMPERE),
    (75, Generation.TURING),
    (70, Generation.VOLTA),
    (60, Generation.PASCAL),
    (50, Generation.MAXWELL),
    (30, Generation.KEPLER),
)
_CORES: Final = ((86, 128), (70, 64), (61, 128), (60, 64), (50, 128), (30, 192))
# Pages of clouds leave out the word between a card and its slice.
_BARE_SLICE: Final = re.compile(r"(?:nvidia\.com/)?(?:mig[\s_-]*)?(?P<slice>(?:\dc\.)?\dg\.\d{1,3}gb\S*)")
# What labels of Kubernetes add where a card is shared, and managers of clusters and clouds before its name.
_DECORATION: Final = re.compile(r"^(?:gres[/:])?gpu:|^gpu_\d+x_|[\s_-]+shared$", re.IGNORECASE)
_SLICE: Final = re.compile(r"(?P<whole>.+?)[\s_-]+(?:mig[\s_-]+)?(?P<slice>(?:\dc\.)?\dg\.\S+)")


# What the driver of a guest names a part of a card (vGPU): its memory in GB and the licence, as in NVIDIA A100-10C.
_GUEST_PROFILE: Final = re.compile(r"nvidia\s+\S+-(?P<gigabytes>\d{1,3})[abcq](?:me)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDevice:
    """What a name means.

    Attributes:
        device: With the memory that was stated, else the usual one.
        is_generic: The table lacks the name; peaks are those of the middle of the table, or of the types of its
            generation where the name shows one.
        is_memory_known: False only for a generic type without a stated memory; `device` then has that of the middle.
        has_facts: Of a generic type: its peaks follow from what its driver says.
        nearest: Known names that look like a generic one.
    """

    device: DeviceType
    is_generic: bool = False
    is_memory_known: bool = True
    has_facts: bool = False
    nearest: tuple[str, ...] = ()


def resolve_device(name: str, memory_bytes: int = 0, facts: DeviceFacts | None = None) -> NamedDevice:
    """Finds the device type that a name means.

    Args:
        name: A full name whatever its case, a short one, or that of a type which the table lacks.
        memory_bytes: As the caller states it, at least 0; 0 = not stated. It decides between types that a short
            name fits alike, and makes an unknown name that of a generic type. Without it the bare name of a chip
            (a100) means its usual type, the smallest where sizes differ.
        facts: What the driver says of the device; None = nothing. The peaks of a generic type follow from it.

    Raises:
        UnknownDeviceError: A misspelling, or a short name that fits several types; the candidates are named.
        InvalidRequestError: No name that a device can have.
    """
    name = _checked(name)
    if not memory_bytes and (guest := _GUEST_PROFILE.fullmatch(name)):
        memory_bytes = int(guest["gigabytes"]) * GIBIBYTE
    return _resolve(name, memory_bytes, facts)


@lru_cache(maxsize=1024)
def _resolve(name: str, memory_bytes: int, facts: DeviceFacts | None) -> NamedDevice:
    plain = _DECORATION.sub("", name)
    found = find_device_type(plain)
    if found is None:
        meant = _meant(plain)
        fitting = meant if len(meant) == 1 else [device for device in meant if _has_memory(device, memory_bytes)]
        if len(fitting) == 1:
            found = fitting[0]
        elif meant:
            found = _usual(plain, fitting if memory_bytes else meant)
            if found is None:
                raise refuse_several(name, meant, memory_bytes)
    if found is None and (bare := _BARE_SLICE.fullmatch(name.lower())):
        raise refuse_slice_without_card(name, _usual_slices(DEVICE_TYPES.values(), bare["slice"]))
    if found is not None:
        return NamedDevice(device=replace(found, memory_bytes=memory_bytes) if memory_bytes else found)
    if is_of_another_kind(name) or (not memory_bytes and facts is None and shares_memory_of_host(name)):
        raise refuse_other_kind(name)
    nearest = tuple(_nearest(name))
    if not memory_bytes and not _NAMES_ITS_MAKER.fullmatch(name):
        raise refuse_unknown(name, nearest)
    device = _generic(name, memory_bytes) if facts is None else generic_by_facts(name, memory_bytes, facts)
    return NamedDevice(
        device=device,
        is_generic=True,
        is_memory_known=bool(memory_bytes),
        has_facts=facts is not None,
        nearest=nearest,
    )


def _checked(name: str) -> str:
    name = name.strip()
    if not name:
        raise invalid_field("device", "is empty", "name a device type, e.g. cpu-standin or NVIDIA H200")
    if len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        shown = ascii(name[:40])
        raise invalid_field("device", f"{shown} is no name of a device", f"at most {NAME_CHARACTERS_MAX} characters")
    return name


def _meant(name: str) -> list[DeviceType]:
    """The known types that a short name fits."""
    sliced = _SLICE.fullmatch(name.lower())
    if sliced is None:
        card = card_of_machine(name) or USUAL_TYPES.get(_compact(name))
        turned = _SHORT_NAMES.get("".join(_memory_last(_words(name))), (card,) if card else ())
        return [DEVICE_TYPES[full] for full in _SHORT_NAMES.get(_compact(name), turned)]
    wholes = [DEVICE_TYPES[full] for full in _SHORT_NAMES.get(_compact(sliced["whole"]), ())]
    return _usual_slices(wholes, sliced["slice"])


def _usual_slices(wholes: Iterable[DeviceType], profile: str) -> list[DeviceType]:
    """Slices of this profile: 1g.10gb is the smallest of an A100 of 80 GB, not the double one of an A100 of 40."""
    parts = [(whole, part) for whole in wholes if (part := slice_of(whole, profile)) is not None]
    shares = [part.memory_bytes_per_s / whole.memory_bytes_per_s for whole, part in parts]
    return [part for share, (_, part) in zip(shares, parts, strict=True) if share <= (1 + 1e-9) * min(shares)]


def _usual(name: str, candidates: list[DeviceType]) -> DeviceType | None:
    """The type that the name of a chip means, alone or with a memory; None where it says too little or too much."""
    compact = _compact(name)
    if compact in USUAL_TYPES and candidates:
        return candidates[0]
    sizes = {device.memory_bytes for device in candidates}
    return candidates[0] if len(sizes) == 1 and compact.startswith(tuple(USUAL_TYPES)) else None


def _has_memory(device: DeviceType, memory_bytes: int) -> bool:
    return abs(memory_bytes - device.memory_bytes) <= _SAME_MEMORY_RATIO * device.memory_bytes


def _words(name: str) -> list[str]:
    """The words that distinguish one type from another; 40G, 40GiB and 40GB are one."""
    split = re.findall(r"[a-z0-9]+", name.lower())
    return [re.sub(r"^(\d+)g(?:i?b)?$", r"\1gb", word) for word in split if word not in _INSIGNIFICANT]


def _compact(name: str) -> str:
    return "".join(_words(name))


def _memory_last(words: Sequence[str]) -> list[str]:
    """The words of a name with its memory behind them: some have it before the form (A100 80GB PCIe)."""
    return sorted(words, key=lambda word: _MEMORY.fullmatch(word) is not None)


def _short_names(device: DeviceType) -> Iterator[str]:
    """Every way to write a name with some of what may be left out, in the order of the words."""
    memory = f"{round(device.memory_bytes / GIBIBYTE)}gb"
    written = [_words(name) for name in (device.name, *_ALSO_WRITTEN.get(device.name, ()))]
    for words in (*written, *map(_memory_last, written)):
        ways = [_ways_to_write(word, after) for word, after in zip(words, [*words[1:], ""], strict=True)]
        ways += [_ways_to_write(memory)] * (memory not in words)
        yield from ("".join(chosen) for chosen in product(*ways))


def _ways_to_write(word: str, following: str = "") -> tuple[str, ...]:
    if word in _SERIES and any(character.isdigit() for character in following):
        return word, ""
    if not _MAY_BE_LEFT_OUT.fullmatch(word) and (word, following) != _GENERATION_IN_A_NAME:
        return (word,)
    if word.endswith("gb"):
        return word, word.removesuffix("gb"), ""
    return (word, "sxm", "") if word.startswith("sxm") else (word, "")


def _list_short_names() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for device in DEVICE_TYPES.values():
        for short in _short_names(device):
            found.setdefault(short, {})[device.name] = None
    return {short: tuple(names) for short, names in found.items()}


def _nearest(name: str) -> list[str]:
    """Known names that look like this one, most similar first."""
    close = difflib.get_close_matches(_compact(name), _SHORT_NAMES, n=40, cutoff=_SIMILAR_RATIO)
    similar = [*_sharing_a_word(name, r".*\d.*"), *(full for short in close for full in _SHORT_NAMES[short])]
    return list(dict.fromkeys(similar or sorted(_sharing_a_word(name, ".{3,}"), key=_unlikeness_to(name))))[
        :_NEAREST_MAX
    ]


def _unlikeness_to(name: str) -> Callable[[str], float]:
    """Return a key by which known names come first of which some short form looks like this one."""
    matcher = difflib.SequenceMatcher(b=_compact(name))

    def unlikeness(full: str) -> float:
        ratios = []
        for short in _short_names(DEVICE_TYPES[full]):
            matcher.set_seq1(short)
            ratios.append(matcher.ratio())
        return -max(ratios, default=0.0)

    return unlikeness


def _sharing_a_word(name: str, pattern: str) -> list[str]:
    words = {word for word in _words(name) if re.fullmatch(pattern, word) and not _MEMORY.fullmatch(word)}
    return [full for full in DEVICE_TYPES if words & set(_words(full))]


def _generic(name: str, memory_bytes: int) -> DeviceType:
    """A type of which nothing is known: the middle of the known GPUs of its generation, where the name shows one."""
    generation = _generation_of(name)
    gpus = _gpus_of(generation)
    precisions = {precision for gpu in gpus for precision in gpu.peak_flops}
    return replace(
        gpus[-1],
        name=name,
        memory_bytes=memory_bytes or int(median(gpu.memory_bytes for gpu in gpus)),
        peak_flops={precision: median(gpu.peak(precision) for gpu in gpus) for precision in sorted(precisions)},
        memory_bytes_per_s=median(gpu.memory_bytes_per_s for gpu in gpus),
        multiprocessors=int(median(gpu.multiprocessors for gpu in gpus)),
        context_bytes=max(gpu.context_bytes for gpu in gpus),
        generation=generation,
        l2_bytes=int(median(gpu.l2_bytes for gpu in gpus)),
    )


def _gpus_of(generation: Generation, left_out: str = "") -> list[DeviceType]:
    """The known GPUs of a generation; all where there is none."""
    every_gpu = [device for full, device in DEVICE_TYPES.items() if full not in (STANDIN_DEVICE, left_out)]
    return [gpu for gpu in every_gpu if gpu.generation is generation] or every_gpu


def generic_by_facts(name: str, memory_bytes: int, facts: DeviceFacts, *, left_out: str = "") -> DeviceType:
    """Makes a generic type by what its driver says: cores by clock, bus by clock, and rates as of the nearest type.

    How much faster matrix units are than cores, and what 64-bit arithmetic costs, differs within a generation between
    cards for games and for servers. The nearest type is one of the same series, GeForce or not, by peak and bandwidth.

    Args:
        name: Of the type.
        memory_bytes: Of the device; 0 = not known.
        facts: What is said of it.
        left_out: A known type that is not looked at, to judge this by it.
    """
    known = _gpus_of(_generation_of_capability(facts.compute_capability), left_out)
    series = [gpu for gpu in known if _is_for_games(gpu.name) is _is_for_games(name)] or known
    nearest = min(series, key=lambda gpu: _distance(gpu, facts))
    flops = facts.fp32_flops
    return replace(
        _generic(name, memory_bytes),
        peak_flops={
            precision: flops * rate / nearest.peak("fp32") for precision, rate in sorted(nearest.peak_flops.items())
        },
        memory_bytes_per_s=facts.memory_bytes_per_s,
        multiprocessors=max(facts.cores // _cores_of_multiprocessor(facts.compute_capability), 1),
        generation=nearest.generation,
        l2_bytes=nearest.l2_bytes,
    )


def _is_for_games(name: str) -> bool:
    return "geforce" in name.lower()


def _distance(gpu: DeviceType, facts: DeviceFacts) -> float:
    """How far a known type is from what is said, by the logarithms of its peak and of its bandwidth."""
    return hypot(log(gpu.peak("fp32") / facts.fp32_flops), log(gpu.memory_bytes_per_s / facts.memory_bytes_per_s))


def _generation_of_capability(capability: int) -> Generation:
    """The generation of a compute capability; the newest one of a newer capability than is known."""
    return next((one for least, one in _CAPABILITIES if capability >= least), Generation.KEPLER)


def _cores_of_multiprocessor(capability: int) -> int:
    return next((cores for least, cores in _CORES if capability >= least), _CORES[-1][1])


def _generation_of(name: str) -> Generation:
    """The generation that a name shows by its series; UNKNOWN where it shows none."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    for word in words:
        if word in _GENERATION_WORDS:
            return _GENERATION_WORDS[word]
    told = " ".join(word for word in words if word not in _INSIGNIFICANT)
    found = (generation for pattern, generation in _NUMBERED_GENERATIONS if re.fullmatch(pattern, told))
    return next(found, Generation.UNKNOWN)


_SHORT_NAMES: Final = _list_short_names()
