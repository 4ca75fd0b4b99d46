#!/usr/bin/env bash
# Builds docker-compose.yml, runs it, sends it a job and takes everything down again (`make compose-test`).
#
# With a Docker engine that answers, that one is used, with BASE_IMAGE from the registry it is configured for. Without one, and
# as root on Debian, it starts a private engine on a base image made by debootstrap, and cleans up behind itself.
# Variables: COMPOSE (default: `docker compose`, else `docker-compose`), BASE_IMAGE, KEEP_WHEELS=1 to reuse deploy/wheels and leave it.
# At its end, or where it failed, it prints the seconds of each stage, and those after the archive of the base image.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source deploy/private_docker.sh
say() { printf '[compose %4ds] %s\n' "$SECONDS" "$*"; }

stages=()
stage_began=0
# end_stage WHAT: notes how long it took since the stage before.
end_stage() {
    stages+=("$(printf '%5d s  %s' "$((SECONDS - stage_began))" "$*")")
    stage_began=$SECONDS
    say "$*"
}
base_at=0
tell_stages() {
    printf '%s\n' "seconds by stage:" ${stages[@]+"${stages[@]}"} "$(printf '%5d s  %s' "$((SECONDS - base_at))" \
        "after the archive of the base image$1 (the bar: 600)")"
}

folder=$(mktemp -d /tmp/cotenant-compose.XXXXXX)
is_private=false
compose=()

# tell_failure CODE COMMAND: which line of which script it was. Tests and conditions do not come here.
tell_failure() {
    say "failed: exit code $1 of \`$2\` (${BASH_SOURCE[1]}, line ${BASH_LINENO[0]})" >&2
}

tell_programs() {
    if [ "${#compose[@]}" -gt 0 ]; then
        say "the last lines of the programs:"
        "${compose[@]}" logs --tail=30 2>&1 || true
    fi
    if [ -s "$folder/dockerd.log" ]; then
        say "the last lines of the engine:"
        tail -n 10 "$folder/dockerd.log"
    fi
}

clean_up() {
    local code=$?
    trap - ERR
    set +e
    [ "$code" -eq 0 ] || { tell_programs; tell_stages ", until it failed"; }
    [ "${#compose[@]}" -eq 0 ] || "${compose[@]}" down -v --remove-orphans >/dev/null 2>&1
    [ -n "${KEEP_WHEELS:-}" ] || ! $is_private || rm -f deploy/wheels/*.whl
    if $is_private; then stop_private_docker "$folder"; else rm -rf "$folder"; fi
    exit "$code"
}

choose_compose() {
    if [ -n "${COMPOSE:-}" ]; then read -r -a compose <<<"$COMPOSE"
    elif docker compose version >/dev/null 2>&1; then compose=(docker compose)
    else compose=(docker-compose); fi
    # Without buildx only the older builder is there.
    docker buildx version >/dev/null 2>&1 || export DOCKER_BUILDKIT=0
    compose+=(--file docker-compose.yml --file docker-compose.metrics.yml)
}

free_port() { .venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

container() { docker ps --all --quiet --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" \
    --filter "label=com.docker.compose.service=$1" | head -n 1; }

# wait_until SECONDS WHAT COMMAND...: repeats the command until it succeeds.
wait_until() {
    local seconds="$1" what="$2" deadline=$((SECONDS + $1))
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || { say "$what: not within $seconds s"; return 1; }
        sleep 2
    done
    say "$what"
}

is_healthy() { [ "$(docker inspect --format '{{.State.Health.Status}}' "$(container "$1")")" = healthy ]; }

trap clean_up EXIT
trap 'tell_failure "$?" "$BASH_COMMAND"' ERR
if ! docker info >/dev/null 2>&1; then
    say "no Docker engine answers; starting a private one"
    install_docker
    is_private=true
    start_private_docker "$folder"
fi
choose_compose
export COMPOSE_PROJECT_NAME=cotenant-test COTENANT_VERSION=test
export COMPOSE_PROFILES=two-agents
for name in SCHEDULER PREDICTOR SCHEDULER_METRICS PREDICTOR_METRICS AGENT_METRICS SECOND_AGENT_METRICS; do export "${name}_PORT=$(free_port)"; done
# A user's own folder, read by the jobs as /jobs.
export JOBS_FOLDER="$folder/jobs"
mkdir -m 755 "$JOBS_FOLDER"
printf 'import time\nfor step in range(1, 301):\n    time.sleep(0.1)\n    print(f"step {step}", flush=True)\n' >"$JOBS_FOLDER/own.py"

if $is_private && [ -z "${BASE_IMAGE:-}" ]; then
    export BASE_IMAGE=cotenant/debian-python:test
    import_base_image "$BASE_IMAGE"
    end_stage "engine started, archive of the base image imported"
    base_at=$SECONDS
    [ -n "${KEEP_WHEELS:-}" ] || { bash deploy/download_wheels.sh; end_stage "wheels downloaded"; }
fi

for files in "" "--file docker-compose.gpu.yml"; do
    # shellcheck disable=SC2086  # two words on purpose
    "${compose[@]}" $files config --quiet
done
say "the compose files are valid"
# One after the other; the second agent has the image of the first.
for name in scheduler predictor agent; do
    "${compose[@]}" build "$name"
    end_stage "image of the $name built"
done
"${compose[@]}" up --detach
wait_until 300 "predictor healthy" is_healthy predictor
wait_until 60 "scheduler healthy" is_healthy scheduler
for name in agent agent-2; do wait_until 120 "$name healthy" is_healthy "$name"; done
end_stage "all programs healthy"

export COTENANT_SCHEDULER="127.0.0.1:$SCHEDULER_PORT" COTENANT_PREDICTOR="127.0.0.1:$PREDICTOR_PORT"
.venv/bin/cotenant nodes
# The command runs in the agent's container, hence its folder; the graph is read here and sent without weights.
timeout 300 .venv/bin/cotenant submit --name compose-mlp --graph examples/jobs/graphs/mlp.onnx --batch-size 64 --steps 50 \
    --workdir /opt/cotenant --wait -- python -m examples.training.train --model mlp --steps 50
end_stage "a job was submitted with its graph, run and finished"

retraining() { .venv/bin/python deploy/compose_retraining.py "$COTENANT_PREDICTOR" "$1"; }
serves() { [ "$(retraining served)" = "$1" ]; }
first_version="$(retraining served)"
[ "$(retraining right)" = PROMOTED ]
learned_version="$(retraining served)"
[ "$learned_version" != "$first_version" ]
end_stage "what was measured was learned and is served"
[ "$(retraining mistaken)" = REFUSED ]
serves "$learned_version"
docker exec "$(container predictor)" python -m predictor_service models rollback --why "compose test" \
    --state-dir /var/lib/cotenant/predictor
wait_until 60 "rolled back by one command" serves "$first_version"
end_stage "a fifth of the labels three times too long was refused, the version rolled back"

for name in SCHEDULER PREDICTOR AGENT SECOND_AGENT; do
    port="${name}_METRICS_PORT"
    .venv/bin/python deploy/health_check.py "http://127.0.0.1:${!port}/metrics"
done
say "all programs publish metrics"

for number in 1 2 3 4; do
    .venv/bin/cotenant submit --name "own-script-$number" --no-capture --steps 300 --workdir /jobs -- python own.py
done
# jobs_in PHASE NAME LEAST [NODE]: at least so many jobs whose names begin so are in that phase, there.
jobs_in() { .venv/bin/cotenant ps --all --output json | .venv/bin/python -c '
import json, sys
phase, name, least, node = (*sys.argv[1:], "")[:4]
jobs = [job for job in json.load(sys.stdin)["jobs"] if job["spec"]["name"].startswith(name)]
found = [job for job in jobs if job["phase"] == f"JOB_PHASE_{phase}" and job.get("node_id", "").endswith(node)]
sys.exit(len(found) < int(least) or len(jobs) != len({job["spec"]["name"] for job in jobs}))' "$@"; }
wait_until 120 "a script of the user's folder runs on one node" jobs_in RUNNING own-script 1 compose-node
wait_until 120 "and another one on the other" jobs_in RUNNING own-script 1 compose-node-2
for name in predictor scheduler agent agent-2; do
    docker kill --signal KILL "$(container "$name")" >/dev/null
done
end_stage "scripts run on both nodes, every container killed"
"${compose[@]}" up --detach
for name in predictor scheduler agent agent-2; do wait_until 300 "$name healthy again after kill -9" is_healthy "$name"; done
end_stage "all programs healthy again"
wait_until 300 "all scripts have run to their ends nevertheless" jobs_in FINISHED own-script 4
wait_until 10 "the volumes remember all jobs, each once" jobs_in FINISHED "" 5

end_stage "nothing was lost"

"${compose[@]}" down -v --remove-orphans
end_stage "taken down"
tell_stages ""
