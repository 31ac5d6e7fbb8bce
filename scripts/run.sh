#!/usr/bin/env bash
# Two nodes on this machine: a file put through node A is read back through node B, by command line and by curl.
# Environment: PORT, the first of the ports used (7600); ONCE=1 ends after the check instead of waiting for Ctrl-C;
# RUN_DIR, where everything lies (.run; it is emptied first).
set -euo pipefail
cd "$(dirname "$0")/.."

port=${PORT:-7600}
once=${ONCE:-}
run_dir=$PWD/${RUN_DIR:-.run}
bin_dir=${CARGO_TARGET_DIR:-target}/release
bin_dir=$(cd "$bin_dir" && pwd)
# A little more than 256 MiB, and no multiple of anything: the last piece is not full.
file_bytes=$((272 * 1024 * 1024 + 12345))
segment_bytes=$((512 * 1024 * 1024))
key=demo/libraries.bin

http_a=127.0.0.11:$port
link_a=127.0.0.11:$((port + 1))
http_b=127.0.0.12:$((port + 2))
link_b=127.0.0.12:$((port + 3))

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() {
    printf 'run: %s\n' "$*" >&2
    exit 1
}
now() { date +%s.%N; }
gb_per_s() { awk -v bytes="$file_bytes" -v from="$1" -v to="$2" 'BEGIN { printf "%.2f GB/s", bytes / (to - from) / 1e9 }'; }

# The nodes inherit the lock: as long as one of them lives, nobody empties the directory under it.
check_run_dir() {
    exec 9>"$run_dir.lock"
    flock -n 9 || fail "$run_dir belongs to another 'make run'; stop that ('make stop' ends its nodes), or take another directory: RUN_DIR=.run-2 make run PORT=$((port + 100))"
}

check_ports() {
    local address
    for address in "$http_a" "$link_a" "$http_b" "$link_b"; do
        if (exec 3<>"/dev/tcp/${address/://}") 2>/dev/null; then
            fail "$address is in use (another 'make run'? 'make stop' ends its nodes); choose other ports, for example: make run PORT=$((port + 100))"
        fi
    done
    [ "${#run_dir}" -le 85 ] || fail "$run_dir is too long a path for a unix socket; clone to a shorter one"
}

pids=()
stop_nodes() {
    local pid failed=0
    for pid in "${pids[@]}"; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=1
    done
    pids=()
    return "$failed"
}

# Real bytes from the disk: the libraries of the Rust toolchain and of the system, one behind the other.
make_file() {
    local -a places=("$(rustc --print sysroot 2>/dev/null || echo /usr/lib)/lib" /usr/lib /usr/bin)
    (
        set +o pipefail # `head` ends the pipe when it has enough
        find "${places[@]}" -type f -size +64k -print0 2>/dev/null | sort -z | xargs -0 cat 2>/dev/null | head -c "$file_bytes"
    ) >"$1"
    local missing=$((file_bytes - $(stat -c %s "$1")))
    [ "$missing" -le 0 ] || head -c "$missing" /dev/urandom >>"$1"
}

prepare_node() { # name
    mkdir -p "$run_dir/$1"
    "$bin_dir/tenond" --init --state-dir "$run_dir/$1/state"
}

configure_node() { # name http link
    cat >"$run_dir/$1/tenond.toml" <<TOML
[node]
state_dir = "$run_dir/$1/state"

[cluster]
name = "run"
secret_file = "$run_dir/secret"
view = "static"

[[cluster.members]]
id = "$id_a"
endpoint = "$link_a"

[[cluster.members]]
id = "$id_b"
endpoint = "$link_b"

[listen]
http = "$2"
link = "$3"
unix = "$run_dir/$1/tenon.sock"

[[segments]]
size = $segment_bytes
TOML
    # A command line for each node, to play with.
    printf '#!/bin/sh\nexec %q --connect %q "$@"\n' "$bin_dir/tenon" "unix:$run_dir/$1/tenon.sock" >"$run_dir/tenon-$1"
    chmod +x "$run_dir/tenon-$1"
}

# In a session of its own: Ctrl-C is for this script, which then asks each node to stop, once.
start_node() { # name
    setsid "$bin_dir/tenond" --config "$run_dir/$1/tenond.toml" >"$run_dir/$1/log" 2>&1 &
    pids+=("$!")
    # For `make stop`, should this script be gone before them.
    echo "$!" >>"$run_dir/pids"
}

wait_ready() { # name http
    local tries
    for tries in $(seq 150); do
        ! curl -fsS "http://$2/readyz" >/dev/null 2>&1 || return 0
        sleep 0.2
    done
    tail -n 20 "$run_dir/$1/log" >&2
    fail "node $1 did not get ready in ${tries} tries; its log is $run_dir/$1/log"
}

check_ports
check_run_dir
rm -rf "$run_dir"
mkdir -m 700 "$run_dir"
(umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$run_dir/secret")

say "Two nodes"
id_a=$(prepare_node a)
id_b=$(prepare_node b)
configure_node a "$http_a" "$link_a"
configure_node b "$http_b" "$link_b"
trap 'stop_nodes || true' EXIT
start_node a
start_node b
wait_ready a "$http_a"
wait_ready b "$http_b"
"$run_dir/tenon-a" nodes

say "A file of $file_bytes bytes"
make_file "$run_dir/input"
expected=$(sha256sum <"$run_dir/input")
echo "sha256 ${expected%% *}"

say "Put through node A"
from=$(now)
"$run_dir/tenon-a" put "$key" "$run_dir/input"
put_speed=$(gb_per_s "$from" "$(now)")

say "Get through node B, by command line and by curl"
from=$(now)
"$run_dir/tenon-b" get "$key" -o "$run_dir/output"
get_speed=$(gb_per_s "$from" "$(now)")
[ "$(sha256sum <"$run_dir/output")" = "$expected" ] || fail "the bytes that came back through node B are not those that were put"
echo "the same sha256 by command line"
[ "$(curl -fsS "http://$http_b/v1/objects/$key" | sha256sum)" = "$expected" ] || fail "the bytes that curl got from node B are not those that were put"
echo "the same sha256 by curl"
from=$(now)
"$run_dir/tenon-b" get "$key" -o - >/dev/null
get_only_speed=$(gb_per_s "$from" "$(now)")

say "Where it lies"
"$run_dir/tenon-b" stat "$key"
"$run_dir/tenon-b" stat "$key" --json | grep -q "$id_a" || fail "node A ($id_a) was to hold the object, so that it crosses to node B"
"$run_dir/tenon-b" segments
rm "$run_dir/output"

say "Throughput of whole commands, checksums included"
echo "put through A, from a file:          $put_speed"
echo "get through B, from A, to a file:    $get_speed"
echo "get through B, from A, to /dev/null: $get_only_speed"

if [ -n "$once" ]; then
    stop_nodes || fail "a node did not stop cleanly; see $run_dir/*/log"
    echo "both nodes stopped"
    exit 0
fi

trap 'exit 0' INT TERM
say "Look at"
cat <<TXT
  http://$http_a/v1/nodes          http://$http_b/v1/nodes
  http://$http_a/v1/objects?prefix=demo/
  http://$http_b/v1/objects/$key
  http://$http_a/metrics           http://$http_b/metrics
  ${run_dir#"$PWD"/}/tenon-a --help              the command line, talking to node A (tenon-b: node B)
Ctrl-C stops both nodes.
TXT
wait -n "${pids[@]}" || true
fail "a node ended by itself; see $run_dir/*/log"
