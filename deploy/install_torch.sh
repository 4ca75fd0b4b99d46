#!/usr/bin/env bash
# Installs torch into the environment whose pip comes first on the PATH; called while the agent's image is built.
# Variables: TORCH_INDEX_URL (empty: pip's own configuration), TORCH_BUILD: cpu (default) or any, which takes CUDA's libraries too.
set -Eeuo pipefail
wanted=(${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} -c constraints.txt torch)
# For Linux the plain index has a torch that needs a dozen packages of NVIDIA; pip reads that off their descriptions alone.
if [ "${TORCH_BUILD:-cpu}" = cpu ]; then
    plan=$(mktemp)
    pip install --dry-run --quiet --ignore-installed --report "$plan" "${wanted[@]}"
    if grep -qiE '"name": *"(nvidia-|cuda-)' "$plan"; then
        {
            echo "This torch brings gigabytes of CUDA libraries. In .env set TORCH_INDEX_URL to the CPU index that pytorch.org's"
            echo "\"Get started\" page names, or take it with TORCH_BUILD=any; docker-compose.gpu.yml takes it anyway."
        } >&2
        exit 1
    fi
    rm -f "$plan"
fi
pip install "${wanted[@]}"
