# Agents with and without RDMA in one machine: what is put and got between them, and over what it went. Run by rdma_agents.rs,
# behind rdma_nodes.sh.
bytes=$((3 * 1024 * 1024 + 17))

# Packets that a device has sent: 4096 bytes of payload each at most.
sent() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"; }

# Whole objects over HTTP are read by the agent itself, over its own devices.
got_through() { # number key
    wget -q -O "$work/got" "http://127.0.0.1:770$1/v1/objects/$2" || return 1
    cmp -s "$work/file" "$work/got" || fail "other bytes of $2 through node $1"
}

configure a 1 'policy = "require"
devices = ["rxe0"]'
configure b 2 'policy = "prefer"
devices = ["rxe1"]'
configure c 3 'policy = "forbid"'
head -c "$bytes" /dev/urandom >"$work/file"
for node in a b c; do start "$node"; done

step "three agents see each other"
see_each_other
[ "$(metric 1 tenon_rdma_rails)" = 1 ] || fail "node a uses no port"
[ "$(metric 3 tenon_rdma_rails)" = 0 ] || fail "node c uses a port"

step "an object on a comes through b over RDMA"
agent a put --node "$id_a" on-a "$work/file"
before=$(sent rxe0)
got_through 2 on-a
packets=$(($(sent rxe0) - before))
[ "$packets" -ge $((bytes / 4096)) ] || fail "only $packets packets left the holder's device"
[ "$(metric 2 'tenon_holder_connections_total{transport="rdma"}')" = 1 ] || fail "node b has no connection over RDMA"
[ "$(metric 2 'tenon_holder_connections_total{transport="tcp"}')" = 0 ] || fail "node b has a connection over TCP"

step "an object of a's client goes to b over RDMA, pulled by b"
before=$(sent rxe0)
tenon --connect "unix:$work/a/sock" --rdma require put --node "$id_b" on-b "$work/file"
before_b=$(sent rxe1)
got_through 1 on-b
packets=$(($(sent rxe1) - before_b))
[ "$packets" -ge $((bytes / 4096)) ] || fail "only $packets packets left b's device"

step "an agent without RDMA and one with it exchange objects over TCP"
before=$(sent rxe0)
agent c put --node "$id_c" on-c "$work/file"
got_through 3 on-a
got_through 2 on-c
[ "$(($(sent rxe0) - before))" -lt $((bytes / 4096)) ] || fail "bytes for node c went over RDMA"
[ "$(metric 2 'tenon_holder_connections_total{transport="tcp"}')" = 1 ] || fail "node b does not reach c over TCP"
if got_through 1 on-c; then fail "node a, which requires RDMA, has read from c"; fi
grep -q 'RDMA, which is required' "$work/a/log" || wget -q -S -O - "http://127.0.0.1:7701/v1/objects/on-c" 2>&1 | grep -q 503 || fail "the refusal has no name"

step "RDMA that is lost altogether: prefer goes on over TCP, counted"
ip link set rail1b down
tries=0
until got_through 2 on-a; do
    tries=$((tries + 1))
    [ "$tries" -lt 30 ] || fail "node b does not go on over TCP"
done
[ "$(metric 2 tenon_rdma_fallbacks_total)" -ge 1 ] || fail "the fallback is not counted"
ip link set rail1b up

step "a killed holder is unavailable, and others go on"
kill -9 "$pid_a"
tries=0
until [ "$(wget -S -O /dev/null "http://127.0.0.1:7702/v1/objects/on-a" 2>&1 | grep -c 'HTTP/1.1 503')" -ge 1 ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 30 ] || fail "the object of a killed holder is not unavailable"
    sleep 0.5
done
got_through 3 on-b
kill "$pid_b" "$pid_c"
wait "$pid_b" "$pid_c" || true
step "done"
