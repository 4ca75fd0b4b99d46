#!/usr/bin/env bash
# Fills deploy/wheels from this machine's pip configuration, so that the images build without a network.
# Usage: download_wheels.sh [PYTHON_OF_THE_BASE]      (default 3.11); TORCH_INDEX_URL as for make setup
set -euo pipefail
cd "$(dirname "$0")/.."
version="${1:-3.11}"
pip=(.venv/bin/pip download --quiet --dest deploy/wheels --constraint constraints.txt
    --only-binary :all: --python-version "$version" --implementation cp)
mapfile -t requirements < <(.venv/bin/python - <<'PYTHON'
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))
extras = project["project"]["optional-dependencies"]
wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
# An editable installation asks hatchling for one package more.
print(*wanted, "editables~=0.3", *extras["predictor"], *extras["scheduler"], *extras["agent"], sep="\n")
PYTHON
)
"${pip[@]}" ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch
"${pip[@]}" "${requirements[@]}"
echo "$(find deploy/wheels -name '*.whl' | wc -l) wheels in deploy/wheels"
