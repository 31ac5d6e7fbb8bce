# Two agents, one of which trusts its peers to write under memory windows, and one of which has tried its device first. Run by rdma_push.rs,
# behind rdma_nodes.sh.
bytes=$((3 * 1024 * 1024 + 17))

written() { # number way
    metric "$1" "tenon_rdma_writes_total{way=\"$2\"}"
}

until_pushed() { # more than so many ranges into a
    tries=0
    until [ "$(written 1 push)" -gt "$1" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 400 ] || fail "the writer does not come to write"
        sleep 0.05
    done
}

put() { # node key file
    eval "to=\$id_$1"
    tenon --connect "unix:$work/b/sock" --rdma require put --node "$to" "$2" "$3"
}

# Read by the other agent, over its own device.
got_through() { # number key file
    wget -q -O "$work/got" "http://127.0.0.1:772$1/v1/objects/$2" || return 1
    cmp -s "$3" "$work/got" || fail "other bytes of $2 through node $1"
}

configure a 1 'policy = "require"
devices = ["rxe0"]
push = "trusted"'
configure b 2 'policy = "require"
devices = ["rxe1"]
push = "probed"'
head -c "$bytes" /dev/urandom >"$work/file"
head -c $((20 * 1024 * 1024)) /dev/urandom >"$work/large"
for node in a b; do start "$node"; done

step "two agents see each other, and say what their devices make of windows"
see_each_other
for number in 1 2; do
    [ "$(metric $number "tenon_rdma_windows_enforced{rail=\"rxe$((number - 1)):1\"}")" = 0 ] || fail "node $number has other windows"
done
[ "$(metric 1 tenon_rdma_push_rails)" = 1 ] || fail "nobody may write to a"
[ "$(metric 2 tenon_rdma_push_rails)" = 0 ] || fail "somebody may write to b"
grep -q 'not enforced (bounds).*puts are pushed\|puts are pushed.*not enforced (bounds)' "$work/a/log" || fail "the log of a says nothing of it"
grep -q 'not enforced (bounds).*puts are pulled\|puts are pulled.*not enforced (bounds)' "$work/b/log" || fail "the log of b says nothing of it"

step "an object goes to the trusting node by writes of its writer"
put a pushed "$work/file"
[ "$(written 1 push)" -ge 4 ] || fail "only $(written 1 push) ranges were pushed"
[ "$(written 1 pull)" = 0 ] || fail "$(written 1 pull) ranges were pulled"
[ "$(metric 1 'tenon_rdma_written_bytes_total{way="push"}')" -ge "$bytes" ] || fail "bytes are missing"
got_through 2 pushed "$work/file"

step "an object goes to the other one by reads of its own"
put b pulled "$work/file"
[ "$(written 2 pull)" -ge 4 ] || fail "only $(written 2 pull) ranges were pulled"
[ "$(written 2 push)" = 0 ] || fail "$(written 2 push) ranges were pushed"
got_through 1 pulled "$work/file"

step "a writer that is killed in the middle leaves its region free, and later puts are whole"
before=$(written 1 push)
tenon --connect "unix:$work/b/sock" --rdma require put --node "$id_a" killed "$work/large" >/dev/null 2>&1 &
writer=$!
until_pushed $((before + 2))
kill -9 "$writer" 2>/dev/null || fail "the writer had ended before it was killed"
wait "$writer" 2>/dev/null || true
tries=0
until put a again "$work/large" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || fail "the region of a killed writer is not given back: $(put a again "$work/large" 2>&1)"
    sleep 0.5
done
got_through 2 again "$work/large"
got_through 2 pushed "$work/file"
if got_through 2 killed "$work/large"; then fail "half an object is there"; fi

step "a holder that is killed while it is written to has nothing of it in its next life, and is written to again"
before=$(written 1 push)
put a torn "$work/large" >/dev/null 2>&1 &
writer=$!
until_pushed $((before + 2))
kill -9 "$pid_a"
wait "$pid_a" 2>/dev/null || true
if wait "$writer"; then fail "the put had ended before its holder was killed"; fi
start a
if got_through 2 torn "$work/large"; then fail "an object is there whose holder has lost it"; fi
tries=0
until put a torn "$work/large" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || fail "nothing is put onto the restarted holder: $(put a torn "$work/large" 2>&1)"
    sleep 0.5
done
got_through 2 torn "$work/large"
[ "$(written 1 push)" -ge 20 ] || fail "the restarted holder is not written to by push: $(written 1 push)"

for node in a b; do
    eval "kill \$pid_$node"
done
wait "$pid_a" "$pid_b" || true
step "done"
