#!/usr/bin/env bash
# Reports what is missing before anything is installed, with the command that brings it.
set -u
python="${1:-python3}"
missing=()
for tool in make git gcc; do command -v "$tool" >/dev/null 2>&1 || missing+=("$tool"); done
# gcc alone brings no headers; the tests compile a small library.
if command -v gcc >/dev/null 2>&1 && ! echo '#include <stdlib.h>' | gcc -E - >/dev/null 2>&1; then missing+=(libc6-dev); fi
if ! command -v "$python" >/dev/null 2>&1; then
    missing+=(python3 python3-venv)
else
    "$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { echo "cotenant needs Python 3.11 or newer; $python is $("$python" --version). Set PYTHON=... to another one." >&2; exit 1; }
fi
if [ "${#missing[@]}" -gt 0 ]; then
    echo "Missing: ${missing[*]}. On Debian or Ubuntu: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
