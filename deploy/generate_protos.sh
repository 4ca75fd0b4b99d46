#!/usr/bin/env bash
# Generates cotenant/v1 from protos/; lints first and refuses a breaking change against the frozen baseline.
# Usage: generate_protos.sh BIN [OUTPUT]   (OUTPUT: another folder, for the test that the stubs are fresh)
set -euo pipefail
bin=$(realpath "$1"); out="${2:-.}"
cd "$(dirname "$0")/.."
"$bin/buf" lint protos
"$bin/buf" breaking protos --against protos/baseline.json
mkdir -p "$out"
"$bin/python" -m grpc_tools.protoc -I protos --plugin=protoc-gen-mypy="$bin/protoc-gen-mypy" \
    --plugin=protoc-gen-mypy_grpc="$bin/protoc-gen-mypy_grpc" \
    --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
    protos/cotenant/v1/*.proto
