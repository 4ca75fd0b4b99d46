"""Certificates of an authority made for one test run, with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_authority(folder: Path, name: str = "ca") -> None:
    """Makes NAME.key and NAME.pem, signed by itself."""
    names = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-days", "2")
    _openssl(folder, "req", "-x509", *_CURVE, *names)


def make_expired_certificate(folder: Path, name: str, *, alternative_names: str) -> None:
    """Makes a certificate whose time was over as it began."""
    make_certificate(folder, name, alternative_names=alternative_names, days=0)


def make_certificate(folder: Path, name: str, *, alternative_names: str, role: str = "", days: int = 2) -> None:
    """Makes NAME.key and NAME.pem, signed by the authority of the folder; without a role it names none."""
    alternative_names += f",URI:cotenant://{role}/{name}" if role else ""
    _openssl(folder, "req", *_CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    (folder / f"{name}.ext").write_text(f"subjectAltName={alternative_names}\n")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", str(days), "-extfile", f"{name}.ext")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
