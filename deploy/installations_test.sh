#!/usr/bin/env bash
# Installs the wheel outside of the clone, in each Python that is here, and asks pip about machines that are not.
#
# For each of PYTHONS (python3.11 to python3.14) that runs: an environment of its own, torch first, then the wheel with
# [all]; in an empty folder with an empty home what a new user does first; then the tests of TESTS, with the wheel.
# For ARM, macOS and Python 3.14 pip only resolves what would be installed. Nothing is left behind.
# Variables: PYTHONS, TESTS, TORCH_INDEX_URL as for make setup.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
own="${PYTHON:-.venv/bin/python}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
say() { printf '[installations %4ds] %s\n' "$SECONDS" "$*"; }
quiet_pip=(-m pip --quiet --disable-pip-version-check)

# try_wheel COTENANT: what a new user does first.
try_wheel() {
    local cotenant="$1" empty="$folder/empty"
    rm -rf "$empty"
    mkdir -p "$empty/home"
    (
        cd "$empty"
        export HOME="$empty/home" XDG_CONFIG_HOME="$empty/home" XDG_STATE_HOME="$empty/home"
        "$cotenant" --version
        "$cotenant" doctor >doctor.txt || [ "$?" -eq 1 ] # no GPU, no cluster
        "$cotenant" predict "$root/examples/jobs/graphs/mlp.onnx" --batch-size 32 --device a100 --offline >predict.txt
        grep -q '^fits' predict.txt
        "$cotenant" simulate "$root/examples/workloads/mixed.toml" --cluster 2x2 --policies fifo >simulate.txt
        grep -q 'fifo' simulate.txt
    )
}

# wanted PLATFORM: the requirements of [all] there; pip itself decides by the machine on which it runs.
wanted() {
    "$own" - "$wheel" "$1" <<'END'
import email, sys, zipfile
from pip._vendor.packaging.requirements import Requirement

with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
    stated = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist", [])
extras = ["", "predictor", "scheduler", "agent", "profiler", "simulator"]
for line in stated:
    one = Requirement(line)
    places = [{"sys_platform": sys.argv[2], "extra": extra} for extra in extras]
    if one.name != "cotenant" and (one.marker is None or any(map(one.marker.evaluate, places))):
        print(f"{one.name}{one.specifier}")
END
}

# resolve PLATFORM VERSION TAG...: what pip would install; only wheels count, since nothing can be built for it here.
resolve() {
    local system="$1" version="$2" tag flags=() requirements
    shift 2
    for tag in "$@"; do flags+=(--platform "$tag"); done
    mapfile -t requirements < <(wanted "$system")
    "$own" "${quiet_pip[@]}" install --dry-run --ignore-installed --target "$folder/never" --only-binary :all: -c constraints.txt \
        --python-version "$version" --implementation cp "${flags[@]}" "${requirements[@]}"
    say "Python $version on $1: ${#requirements[@]} requirements resolved"
}

"$own" "${quiet_pip[@]}" wheel --no-deps --wheel-dir "$folder" "$root"
wheel="$(echo "$folder"/cotenant-*.whl)"
resolve linux 3.14 manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64
for version in 3.12 3.14; do
    resolve linux "$version" manylinux_2_28_aarch64 manylinux_2_27_aarch64 manylinux_2_26_aarch64 manylinux2014_aarch64
    resolve darwin "$version" macosx_14_0_arm64 macosx_13_0_arm64 macosx_12_0_arm64 macosx_11_0_arm64 \
        macosx_11_0_universal2 macosx_10_13_universal2 macosx_10_9_universal2
done
for python in ${PYTHONS-python3.11 python3.12 python3.13 python3.14}; do
    "$python" -c '' 2>/dev/null || { say "$python: not on this machine"; continue; }
    say "$("$python" --version)"
    "$python" -m venv "$folder/venv"
    pip=("$folder/venv/bin/python" "${quiet_pip[@]}")
    "${pip[@]}" install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} -c constraints.txt torch
    "${pip[@]}" install -c constraints.txt "$wheel[all]"
    try_wheel "$folder/venv/bin/cotenant"
    say "doctor, predict and simulate work outside of the clone"
    "${pip[@]}" install -c constraints.txt pytest pytest-timeout pytest-xdist hypothesis
    # shellcheck disable=SC2086
    "$folder/venv/bin/python" -m pytest -q -p no:cacheprovider ${TESTS:-tests/unit/cli tests/unit/access tests/unit/capture}
    rm -rf "$folder/venv"
done
