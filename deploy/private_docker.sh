#!/usr/bin/env bash
# A Docker engine of our own, for a machine that has none running; sourced by compose_test.sh.
# Needs root and apt. Everything it creates lies in one folder and is gone after stop_private_docker.

# install_docker: the engine, Compose 1.29 and debootstrap, where they are missing.
install_docker() {
    local package missing=()
    for package in docker.io:dockerd docker-compose:docker-compose debootstrap:debootstrap iptables:iptables; do
        command -v "${package#*:}" >/dev/null || missing+=("${package%:*}")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "Missing: ${missing[*]}. As root: apt-get install ${missing[*]}" >&2
        return 1
    fi
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# save_packet_filter: the rules as they are; a table that does not exist yet is written as an empty one, because restoring
# a file without a table leaves that table as dockerd made it.
save_packet_filter() {
    local saved
    saved=$(iptables-save)
    [ -z "$saved" ] || printf '%s\n' "$saved"
    grep -q '^\*filter' <<<"$saved" ||
        printf '*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n'
    grep -q '^\*nat' <<<"$saved" ||
        printf '*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n'
}

# start_private_docker FOLDER: starts dockerd there, sets DOCKER_HOST and engine_pid.
start_private_docker() {
    local folder="$1"
    save_packet_filter >"$folder/iptables.before"
    cat /proc/sys/net/ipv4/ip_forward >"$folder/ip_forward.before"
    nice -n 10 dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/docker.pid" \
        --host "unix://$folder/docker.sock" --storage-driver overlay2 >"$folder/dockerd.log" 2>&1 &
    engine_pid=$!
    export DOCKER_HOST="unix://$folder/docker.sock"
    for _ in $(seq 60); do
        docker version >/dev/null 2>&1 && return
        kill -0 "$engine_pid" 2>/dev/null || break
        sleep 1
    done
    echo "dockerd did not start:" >&2
    tail -n 20 "$folder/dockerd.log" >&2
    return 1
}

# debian_mirror: where this machine's apt gets Debian; nothing where it names no address that debootstrap understands.
debian_mirror() {
    local apt="${APT_FOLDER:-/etc/apt}" file files=()
    # Debian 12 has one of the two, and a missing one is no fault.
    for file in "$apt/sources.list.d/debian.sources" "$apt/sources.list"; do
        [ ! -r "$file" ] || files+=("$file")
    done
    # A repository without the section main is not Debian's, and a list of mirrors (mirror+file:) means something to apt only.
    [ "${#files[@]}" -eq 0 ] || awk '/^URIs:/ || /^deb .* main( |$)/ {
        for (word = 2; word <= NF; word++) if ($word ~ /^(https?|file):\/\//) { print $word; exit }
    }' "${files[@]}"
}

# import_base_image NAME: Debian with Python as an image, made once per machine from its own Debian mirror.
import_base_image() {
    local name="$1" cache="${XDG_CACHE_HOME:-$HOME/.cache}/cotenant" archive root mirror
    archive="$cache/debian-bookworm-python.tar"
    if [ ! -f "$archive" ]; then
        mkdir -p "$cache"
        root=$(mktemp -d "$cache/rootfs.XXXXXX")
        mirror=$(debian_mirror)
        nice -n 10 debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
            bookworm "$root" ${mirror:+"$mirror"} >"$cache/debootstrap.log" 2>&1 || {
            echo "debootstrap made no base image from ${mirror:-its own mirror}; the end of $cache/debootstrap.log:" >&2
            tail -n 5 "$cache/debootstrap.log" >&2
            rm -rf "$root"
            return 1
        }
        tar -C "$root" -c . >"$archive.partial"
        mv "$archive.partial" "$archive"
        rm -rf "$root"
    fi
    docker import "$archive" "$name" >/dev/null
}

# stop_private_docker FOLDER: stops the engine and takes back what it changed on the machine.
stop_private_docker() {
    local folder="$1" waited=0 mount
    kill "$engine_pid" 2>/dev/null || true
    while kill -0 "$engine_pid" 2>/dev/null && [ "$waited" -lt 60 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    ip link delete docker0 2>/dev/null || true
    iptables-restore <"$folder/iptables.before" || true
    cat "$folder/ip_forward.before" >/proc/sys/net/ipv4/ip_forward || true
    while read -r mount; do umount "$mount" 2>/dev/null || true; done < <(
        awk -v folder="$folder/" 'index($2, folder) == 1 {print $2}' /proc/mounts | sort -r)
    find /sys/fs/cgroup -mindepth 1 -maxdepth 2 -type d -name docker -exec rmdir {} + 2>/dev/null || true
    rm -rf "$folder"
}
