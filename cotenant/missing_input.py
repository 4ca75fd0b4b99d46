"""Whether a program ended because it lacked input: an answer to a prompt, or command-line arguments."""

from __future__ import annotations

import re

_NO_ANSWER = re.compile(
    r"(?m)^EOFError(?:: EOF when reading a line|(?<=, in _raw_input\n {4}raise EOFError\nEOFError))\s*\Z"
)
_MARKS = r"(?: {4}[ ~^]{1,1000}\r?\n)?"
_NO_ARGUMENTS = re.compile(
    r"(?m)^ {4}[^\n]{0,300}\b(?:sys\.)?argv\b[^\n]{0,300}\r?\n" + _MARKS + r"(?:IndexError: list index out of range"
    r"|ValueError: (?:not enough|too many) values to unpack[^\r\n]{0,100})\s*\Z"
)


def asked_for_input(log: str) -> bool:
    """Returns whether a Python program asked for a line, or for a secret, as its last deed, and got none.

    Args:
        log: The end of what it printed.
    """
    return _NO_ANSWER.search(log) is not None


def lacks_arguments(log: str) -> bool:
    """Returns whether a Python program looked in vain for a word of its command, as its last deed.

    Args:
        log: The end of what it printed.
    """
    return _NO_ARGUMENTS.search(log) is not None
