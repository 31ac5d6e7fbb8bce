# Segments that come and go at an agent whose peers read them over RDMA. Run by rdma_segments.rs, behind rdma_nodes.sh.
status_of() { # number key
    wget -S -O "$work/got" "http://127.0.0.1:774$1/v1/objects/$2" 2>&1 | sed -n 's/.*HTTP.1.1 \([0-9]*\).*/\1/p' | tail -n 1
}

# What b reads it reads over its own device.
got_by_b() { # key
    found=$(status_of 2 "$1")
    [ "$found" = 200 ] || fail "$1 through b: $found"
    cmp -s "$work/file" "$work/got" || fail "other bytes of $1 through b"
}

shared_kib() { awk '/RssShmem/ {print $2}' "/proc/$pid_a/status"; }

segment_of() { agent a --json stat "$1" | tr -d ' \n' | sed 's/.*"segment":\([0-9]*\).*/\1/'; }

configure a 1 'policy = "require"
devices = ["rxe0"]'
configure b 2 'policy = "require"
devices = ["rxe1"]'
head -c $((3 * 1024 * 1024 + 17)) /dev/urandom >"$work/file"
for node in $nodes; do start "$node"; done

step "two agents see each other"
see_each_other
agent a put --node "$id_a" first "$work/file" || fail "the first put"
got_by_b first
before=$(shared_kib)

for round in 2 3 4; do
    step "segment $round is mounted, registered and read over RDMA"
    agent a segment mount --size 16MiB --huge-pages off || fail "it is not mounted"
    agent a put --node "$id_a" "in-$round" "$work/file" || fail "nothing is put there"
    [ "$(segment_of "in-$round")" = "$round" ] || fail "it lies in segment $(segment_of "in-$round")"
    got_by_b "in-$round"
    [ "$(shared_kib)" -ge $((before + 16 * 1024)) ] || fail "it has no memory of its own"

    step "segment $round is unmounted while b knows where it lies"
    agent a segment unmount "$round" || fail "it is not unmounted"
    [ "$(shared_kib)" -lt $((before + 1024)) ] || fail "its memory is not given back: $before, then $(shared_kib) KiB"
    found=$(status_of 2 "in-$round")
    [ "$found" = 404 ] || fail "what lay there: $found"
    got_by_b first
done
[ "$(metric 2 'tenon_holder_connections_total{transport="tcp"}')" = 0 ] || fail "b has a connection over TCP"
kill "$pid_a" "$pid_b"
wait "$pid_a" "$pid_b" || true
step "done"
