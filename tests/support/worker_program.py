"""The program of a worker that was forked: as in one that execnet starts, the first line says what it runs."""

from __future__ import annotations

import ast
import sys

if __name__ == "__main__":
    exec(ast.literal_eval(sys.stdin.readline()))
