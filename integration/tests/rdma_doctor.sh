# Looks at A, one of three members, of which B uses device_b and C none. Run by rdma_doctor.rs.
set -eu
work=$(mktemp -d)

prepare() { # node
    mkdir -p "$work/$1"
    tenond --init --state-dir "$work/$1/state"
}

configure() { # node number rdma-lines
    cat >"$work/$1/tenond.toml" <<TOML
[node]
state_dir = "$work/$1/state"
[cluster]
view = "static"
members = [
    { id = "$id_a", endpoint = "127.0.0.1:7741" },
    { id = "$id_b", endpoint = "127.0.0.1:7742" },
    { id = "$id_c", endpoint = "127.0.0.1:7743" },
]
[listen]
http = "127.0.0.1:775$2"
link = "127.0.0.1:774$2"
unix = "$work/$1/sock"
[[segments]]
size = "16MiB"
huge_pages = "off"
[rdma]
$3
TOML
}

id_a=$(prepare a)
id_b=$(prepare b)
id_c=$(prepare c)
configure a 1 "policy = \"$policy\"
devices = [\"$device_a\"]"
configure b 2 "policy = \"require\"
devices = [\"$device_b\"]"
configure c 3 'policy = "forbid"'
for node in b c; do
    tenond --config "$work/$node/tenond.toml" >"$work/$node/log" 2>&1 &
    eval "pid_$node=$!"
done
tries=0
until [ -S "$work/b/sock" ] && [ -S "$work/c/sock" ]; do
    tries=$((tries + 1))
    if [ "$tries" -ge 200 ]; then
        cat "$work/b/log" "$work/c/log" >&2
        exit 1
    fi
    sleep 0.1
done
status=0
tenon --json doctor --config "$work/a/tenond.toml" || status=$?
kill "$pid_b" "$pid_c"
wait "$pid_b" "$pid_c" || true
exit "$status"
