# What the scripts with agents have in common. Before it stand `nodes`, the letters of the agents, and `http_ports` and `link_ports`, the
# ports of the agents without their last digit, which is the agent's number.
set -eu
work=$(mktemp -d)

fail() {
    echo "FAILED: $*" >&2
    for node in $nodes; do
        echo "--- log of $node" >&2
        tail -n 30 "$work/$node/log" >&2 || true
    done
    exit 1
}

step() { echo "== $*"; }

members() {
    number=0
    for member in $nodes; do
        number=$((number + 1))
        eval "id=\$id_$member"
        echo "    { id = \"$id\", endpoint = \"127.0.0.1:$link_ports$number\" },"
    done
}

configure() { # node number rdma-lines
    cat >"$work/$1/tenond.toml" <<TOML
[node]
state_dir = "$work/$1/state"
[cluster]
view = "static"
members = [
$(members)
]
[listen]
http = "127.0.0.1:$http_ports$2"
link = "127.0.0.1:$link_ports$2"
unix = "$work/$1/sock"
[timeouts]
heartbeat_ms = 500
unreachable_after_ms = 3000
[[segments]]
size = "32MiB"
huge_pages = "off"
[rdma]
$3
TOML
}

start() { # node
    tenond --config "$work/$1/tenond.toml" >>"$work/$1/log" 2>&1 &
    eval "pid_$1=$!"
}

# Asks a node over its socket.
agent() { # node arguments
    node=$1
    shift
    tenon --connect "unix:$work/$node/sock" --rdma forbid "$@"
}

# Waits until every node sees all of them.
see_each_other() {
    all=$(echo "$nodes" | wc -w)
    for node in $nodes; do
        tries=0
        until [ "$(agent "$node" nodes 2>/dev/null | grep -c alive)" -eq "$all" ]; do
            tries=$((tries + 1))
            [ "$tries" -lt 200 ] || fail "node $node does not see all $all nodes: $(agent "$node" nodes 2>&1)"
            sleep 0.2
        done
    done
}

metric() { # number series
    wget -q -O - "http://127.0.0.1:$http_ports$1/metrics" | awk -v series="$2" '$1 == series {print $2}'
}

for node in $nodes; do
    mkdir -p "$work/$node"
    eval "id_$node=\$(tenond --init --state-dir \"\$work/\$node/state\")"
done

# ---- What follows is the test. ----
