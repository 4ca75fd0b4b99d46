"""The manual page names every verb and flag, and the formatter of man has nothing against it."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from cotenant.cli.main import VERBS
from cotenant.cli.manual_page import manual_page
from tests.support.cli_cluster import CommandLine


def test_the_page_names_every_verb_with_its_flags(cotenant: CommandLine) -> None:
    page = cotenant("manual").out.replace(r"\-", "-")
    for verb in VERBS:
        assert f'.SS "cotenant {verb}"' in page
    assert '.SS "cotenant nodes drain"' in page
    for words in ("--array", "--time-limit", "--standin-cores", "Exit status:", "cotenant submit job.yaml --wait"):
        assert words in page


def test_no_text_of_a_help_is_taken_for_an_order_to_the_formatter() -> None:
    @click.group(help="Does it.\n\n.SH FOREIGN\n\n\b\n'quoted\n\\fBbold")
    def program() -> None: ...

    @program.command(name="verb", help=".so /etc/passwd")
    @click.option("--flag", help="'tis \\n(.x")
    def _(flag: str) -> None: ...

    lines = manual_page(program, "program").splitlines()
    orders = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert orders <= {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".nf", ".fi"}
    assert [line for line in lines if line.startswith(".SH")] == [
        ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH VERBS", ".SH EXIT STATUS",
    ]  # fmt: skip
    assert not re.search(r"\\(?![e&-])", "".join(lines))


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_the_formatter_has_nothing_to_complain_about(cotenant: CommandLine) -> None:
    page = cotenant("manual").out
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-cbou"], input=page, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "cotenant nodes drain" in done.stdout
