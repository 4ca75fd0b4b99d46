"""Where calibrations of this machine's devices lie: one JSON file per device type and driver in a folder.

`cotenant calibrate` and an agent write there, `cotenant predict` looks there.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Final

from cotenant.device_calibration import (
    CalibrationError,
    DeviceCalibration,
    read_calibration_file,
    write_calibration,
)

FOLDER: Final = "calibrations"
UNREADABLE_REMEDY: Final = "measure it anew with `cotenant calibrate`, or delete the file"
_FILES_MAX: Final = 200
_UNSAID: Final = re.compile(r"nvidia|geforce|tesla|quadro|amd|radeon|instinct|sxm\d?|pcie|\d+gb")
"""Words of a full name that people leave out of it; the one at hand has them."""


def calibration_path(state_dir: Path, device: str, driver: str) -> Path:
    """Return the file of a device type under a driver, below a program's state folder."""
    slug = re.sub("[^a-z0-9]+", "-", device.lower()).strip("-")[:48]
    digest = hashlib.sha256(f"{device}\n{driver}".encode()).hexdigest()[:8]
    return state_dir / FOLDER / f"{slug}-{digest}.json"


def keep_calibration(path: Path, calibration: DeviceCalibration) -> None:
    """Write a calibration; readers see the old or the new file, whatever happens in between.

    Raises:
        OSError: It cannot be written there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(write_calibration(calibration), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def newest_calibration(state_dir: Path, device: str, now_ms: int) -> tuple[Path, DeviceCalibration] | None:
    """Return the newest calibration of a device type that this machine's programs keep; None where there is none.

    Args:
        state_dir: Where the programs of this machine keep their data.
        device: Device type by its full name, in any case.
        now_ms: Milliseconds since 1970.
    """
    kept = _kept_calibrations(state_dir, now_ms)
    found = [each for each in kept if each[1].device.lower() == device.lower()]
    return max(found, key=lambda each: each[1].measured_at_ms, default=None)


def device_at_hand(state_dir: Path, name: str, now_ms: int) -> str:
    """Return the full name of the calibrated device of this machine that is meant, else the name itself.

    Where one is calibrated, `a100` means that one, whatever else is sold by that name.

    Args:
        state_dir: Where the programs of this machine keep their data.
        name: Device type by a full or a short name, in any case.
        now_ms: Milliseconds since 1970.
    """
    devices = {calibration.device for _, calibration in _kept_calibrations(state_dir, now_ms)}
    meant = [device for device in devices if device.lower() == name.lower()]
    meant = meant or [device for device in devices if _is_short_for(name, device)]
    return meant[0] if len(meant) == 1 else name


def unreadable_calibrations(state_dir: Path, now_ms: int) -> list[CalibrationError]:
    """Return what is wrong with the files of this machine's programs that are passed over: they hold no calibration.

    Args:
        state_dir: Where the programs of this machine keep their data.
        now_ms: Milliseconds since 1970.
    """
    read = (_read(path, now_ms) for path in _kept_files(state_dir))
    return [each for each in read if isinstance(each, CalibrationError)]


def _kept_calibrations(state_dir: Path, now_ms: int) -> list[tuple[Path, DeviceCalibration]]:
    read = ((path, _read(path, now_ms)) for path in _kept_files(state_dir))
    return [(path, each) for path, each in read if isinstance(each, DeviceCalibration)]


def _kept_files(state_dir: Path) -> list[Path]:
    # Folders of `cotenant calibrate` and of every agent that runs here.
    return sorted([*state_dir.glob(f"{FOLDER}/*.json"), *state_dir.glob(f"agent-*/{FOLDER}/*.json")])[:_FILES_MAX]


def _read(path: Path, now_ms: int) -> DeviceCalibration | CalibrationError:
    try:
        return read_calibration_file(path, now_ms)
    except CalibrationError as error:
        return error


def _is_short_for(name: str, device: str) -> bool:
    """Whether `h200` or `rtx4090` is how people name a device: nothing that tells types apart is left out."""
    said, words = (re.findall("[a-z0-9]+", each.lower()) for each in (name, device))
    tell, of_device = ("".join(word for word in each if not _UNSAID.fullmatch(word)) for each in (said, words))
    return bool(tell) and tell == of_device and all(word in words for word in said if _UNSAID.fullmatch(word))
