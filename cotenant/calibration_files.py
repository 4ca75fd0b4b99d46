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
_FILES_MAX: Final = 200


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
    # Folders of `cotenant calibrate` and of every agent that runs here.
    paths = sorted([*state_dir.glob(f"{FOLDER}/*.json"), *state_dir.glob(f"agent-*/{FOLDER}/*.json")])
    found = []
    for path in paths[:_FILES_MAX]:
        try:
            calibration = read_calibration_file(path, now_ms)
        except CalibrationError:
            continue
        if calibration.device.lower() == device.lower():
            found.append((path, calibration))
    return max(found, key=lambda each: each[1].measured_at_ms, default=None)
