#!/usr/bin/env bash
# Installs the wheel outside of the clone, in each Python that is here, and asks pip about machines that are not.
#
# For each of PYTHONS (python3.11 to python3.14) that runs: an environment of its own, torch first, then the wheel with
# [all]; in an empty folder with an empty home what a new user does first; then the clone's tests of TESTS, with the
# libraries that the wheel has brought.
# Where the index has no CPU build of torch for a Python, the demo and the tests that need torch are left out.
# For ARM, macOS and Python 3.14 pip only resolves what would be installed, in RESOLVE_S seconds each (900).
# What was not resolved is said with pip's last line, and makes the exit status 1. Nothing is left behind.
# Variables: PYTHONS, TESTS, RESOLVE_S, TORCH_INDEX_URL as for make setup.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
own="${PYTHON:-.venv/bin/python}"
folder="$(mktemp -d)"
up=0
trap '[ "$up" -eq 0 ] || kill -TERM "$up"; rm -rf "$folder"' EXIT
say() { printf '[installations %4ds] %s\n' "$SECONDS" "$*"; }
quiet_pip=(-m pip --quiet --disable-pip-version-check)
status=0

# try_wheel COTENANT HAS_TORCH: what a new user does first.
try_wheel() {
    local cotenant="$1" empty="$folder/empty"
    rm -rf "$empty"
    mkdir -p "$empty/home"
    cd "$empty"
    export HOME="$empty/home" XDG_CONFIG_HOME="$empty/home" XDG_STATE_HOME="$empty/home"
    "$cotenant" --version
    "$cotenant" doctor >doctor.txt || [ "$?" -eq 1 ] # no GPU, no cluster
    "$cotenant" predict "$root/examples/jobs/graphs/mlp.onnx" --batch-size 32 --device a100 --offline >predict.txt
    grep -q '^fits' predict.txt
    "$cotenant" simulate "$root/examples/workloads/mixed.toml" --cluster 4x4 --policies fifo >simulate.txt
    grep -q 'fifo' simulate.txt
    say "doctor, predict and simulate work outside of the clone"
    try_up "$cotenant"
    if [ "$2" = yes ]; then
        "$cotenant" demo >demo.txt
        say "the demo works outside of the clone"
    fi
    cd "$root"
}

# try_up COTENANT: a small cluster runs a script that knows nothing of it.
try_up() {
    printf 'for step in range(1, 6): print(f"step {step}/5")\n' >hello.py
    "$1" up --standin-cores 0 --predictor-port 0 --scheduler-port 0 >up.txt 2>&1 &
    up=$!
    for _ in $(seq 600); do
        if grep -q '^next' up.txt || ! kill -0 "$up"; then break; fi
        sleep 0.5
    done
    grep '^export' up.txt >exports
    # shellcheck disable=SC1091
    source ./exports
    "$1" submit --no-capture --steps 5 --wait -- "$(dirname "$1")/python" hello.py >submit.txt
    kill -TERM "$up"
    wait "$up" || true
    up=0
    say "up runs a script outside of the clone"
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

# ask_pip VERSION WORD...: what pip would install; only wheels count, since nothing can be built for it here.
ask_pip() {
    local version="$1"
    shift
    timeout "${RESOLVE_S:-900}" "$own" "${quiet_pip[@]}" install --dry-run --ignore-installed --target "$folder/never" \
        --only-binary :all: -c constraints.txt --python-version "$version" --implementation cp "$@" 2>"$folder/pip.txt"
}

# resolve PLATFORM VERSION TAG...
resolve() {
    local system="$1" version="$2" tag flags=() requirements apart=()
    shift 2
    for tag in "$@"; do flags+=(--platform "$tag"); done
    mapfile -t requirements < <(wanted "$system")
    if [ "$system" = darwin ]; then
        # pip reads the markers of what is required as of this machine: xgboost would need NVIDIA's NCCL there, and pip
        # looks for an older release of everything else, hour by hour. What it needs besides is among the others.
        mapfile -t apart < <(printf '%s\n' "${requirements[@]}" | grep '^xgboost')
        mapfile -t requirements < <(printf '%s\n' "${requirements[@]}" | grep -v '^xgboost')
    fi
    if ask_pip "$version" "${flags[@]}" "${requirements[@]}" \
        && { [ "${#apart[@]}" -eq 0 ] || ask_pip "$version" --no-deps "${flags[@]}" "${apart[@]}"; }; then
        say "Python $version on $1: $((${#requirements[@]} + ${#apart[@]})) requirements resolved"
    else
        status=1
        say "Python $version on $1: NOT resolved (in ${RESOLVE_S:-900} s): $(tail -n 1 "$folder/pip.txt")"
    fi
}

# try_python PYTHON
try_python() {
    local has_torch=no without=() pip=("$folder/venv/bin/python" "${quiet_pip[@]}") tests=(tests/unit/cli tests/unit/access)
    say "$("$1" --version)"
    "$1" -m venv "$folder/venv"
    if PATH="$folder/venv/bin:$PATH" bash deploy/install_torch.sh >"$folder/torch.txt" 2>&1; then
        has_torch=yes
        tests+=(tests/unit/capture)
    else
        say "without torch: $(tail -n 1 "$folder/torch.txt")"
        mapfile -t without < <(grep -rlE '^(import|from) (torch|cotenant_profiler)' tests/unit | sed 's/^/--ignore=/')
        # What captures, or starts the profiler: both ask for torch when they are called.
        without+=(--ignore=tests/unit/cli/test_submit_captures.py --ignore=tests/unit/cli/test_wrong_program_lines.py)
        without+=(-k 'not captured_by_that_python and not verb_of_another_program')
    fi
    "${pip[@]}" install -c constraints.txt "$wheel[all]"
    try_wheel "$folder/venv/bin/cotenant" "$has_torch"
    "${pip[@]}" install -c constraints.txt pytest pytest-timeout pytest-xdist hypothesis
    # shellcheck disable=SC2086
    "$folder/venv/bin/python" -m pytest -q -p no:cacheprovider "${without[@]}" ${TESTS:-"${tests[@]}"} \
        || status=1
    rm -rf "$folder/venv"
}

"$own" "${quiet_pip[@]}" wheel --no-deps --wheel-dir "$folder" "$root"
wheel="$(echo "$folder"/cotenant-*.whl)"
for python in ${PYTHONS-python3.11 python3.12 python3.13 python3.14}; do
    if "$python" -c '' 2>/dev/null; then try_python "$python"; else say "$python: not on this machine"; fi
done
resolve linux 3.14 manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64
for version in 3.12 3.14; do
    resolve linux "$version" manylinux_2_28_aarch64 manylinux_2_27_aarch64 manylinux_2_26_aarch64 manylinux2014_aarch64
    resolve darwin "$version" macosx_14_0_arm64 macosx_13_0_arm64 macosx_12_0_arm64 macosx_11_0_arm64 \
        macosx_11_0_universal2 macosx_10_13_universal2 macosx_10_9_universal2
done
exit "$status"
