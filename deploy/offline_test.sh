#!/usr/bin/env bash
# Runs the tests again in a network namespace that has nothing but loopback: after `make setup` nothing needs a network.
# Usage: offline_test.sh [PYTEST ARGUMENTS]      Needs root, or a kernel that lets users make namespaces.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -x .venv/bin/pytest ] || { echo "no .venv: run make setup first" >&2; exit 1; }
if [ -z "${COTENANT_SHARED_DATA:-}" ] && [ -d ../shared/data ]; then
    COTENANT_SHARED_DATA="$(cd ../shared/data && pwd)"
    export COTENANT_SHARED_DATA
fi
# Root stays root; a user becomes root of the namespace only, to bring loopback up.
mapped=()
[ "$(id -u)" -eq 0 ] || mapped=(--map-root-user)
# shellcheck disable=SC2016  # expanded inside the namespace
exec unshare --net "${mapped[@]}" bash -euo pipefail -c '
    ip link set lo up
    if [ "$(ip -o link show up | wc -l)" -ne 1 ]; then echo "more than loopback is up" >&2; exit 1; fi
    exec .venv/bin/pytest -m "not endurance and not gpu and not compose" "$@"' offline "$@"
