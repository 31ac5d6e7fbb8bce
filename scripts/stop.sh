#!/usr/bin/env bash
# Stops the nodes that `make run` started and left behind. Environment: RUN_DIR, where everything lies (.run).
set -euo pipefail
cd "$(dirname "$0")/.."

run_dir=$PWD/${RUN_DIR:-.run}
[ -e "$run_dir/pids" ] || {
    echo "no nodes of 'make run' are known in $run_dir"
    exit 0
}

# A number in the file may be another process's by now: a node of this directory has its configuration on its command line.
is_node() { # pid
    tr '\0' '\n' 2>/dev/null <"/proc/$1/cmdline" | grep -qxF -e "$run_dir/a/tenond.toml" -e "$run_dir/b/tenond.toml"
}

left=()
while read -r pid; do
    if is_node "$pid" && kill -TERM "$pid" 2>/dev/null; then
        left+=("$pid")
    fi
done <"$run_dir/pids"
echo "stopping ${#left[@]} nodes"
for _ in $(seq 100); do
    still=()
    for pid in "${left[@]}"; do
        ! is_node "$pid" || still+=("$pid")
    done
    left=("${still[@]}")
    [ "${#left[@]}" -gt 0 ] || exit 0
    sleep 0.1
done
echo "stop: nodes ${left[*]} do not end; kill -9 ends them" >&2
exit 1
