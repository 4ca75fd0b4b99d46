"""Peaks of memory above what is known of a key: the predictor, which is told of them, has another answer by now.

It is asked once more for each peak that is larger than all before, not at every submission: when the attempt has ended,
if a job of the key lives, and else when the next one is submitted. Nothing waits for the answer: what was known stays
until it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LargerPeak:
    """The largest such peak of a key on a device type, and whether the predictor was asked since."""

    memory_peak_bytes: int
    is_asked: bool = False


class LargerPeaks:
    """These peaks by key and device type."""

    def __init__(self) -> None:
        self._peaks: dict[str, dict[str, LargerPeak]] = {}

    def note(self, key: str, device: str, memory_peak_bytes: int) -> None:
        """Keep a peak that is above what is known of the key, if it is the largest so far."""
        by_device = self._peaks.setdefault(key, {})
        before = by_device.get(device)
        if before is None or memory_peak_bytes > before.memory_peak_bytes:
            by_device[device] = LargerPeak(memory_peak_bytes=memory_peak_bytes)

    def take_unasked(self, key: str) -> list[str]:
        """Return the device types about which the predictor is to be asked again, and note that it is."""
        by_device = self._peaks.get(key, {})
        devices = [device for device, peak in by_device.items() if not peak.is_asked]
        for device in devices:
            by_device[device] = LargerPeak(memory_peak_bytes=by_device[device].memory_peak_bytes, is_asked=True)
        return devices

    def forget_question(self, key: str, device: str) -> None:
        """Note that a question was not answered: it is asked again for the next job."""
        peak = self._peaks.get(key, {}).get(device)
        if peak is not None and peak.is_asked:
            self._peaks[key][device] = LargerPeak(memory_peak_bytes=peak.memory_peak_bytes)

    def forget(self, key: str) -> None:
        """Drop what is kept of a key."""
        self._peaks.pop(key, None)

    def stored(self) -> Iterator[tuple[str, str, LargerPeak]]:
        """Yield everything inside."""
        for key, by_device in self._peaks.items():
            for device, peak in by_device.items():
                yield key, device, peak

    def load(self, stored: Iterable[tuple[str, str, LargerPeak]]) -> None:
        """Fill it, empty before."""
        for key, device, peak in stored:
            self._peaks.setdefault(key, {})[device] = peak
