# Looks at A, one of three members, of which B uses device_b and C none. Run by rdma_doctor.rs, behind rdma_nodes.sh.
configure a 1 "policy = \"$policy\"
devices = [\"$device_a\"]"
configure b 2 "policy = \"require\"
devices = [\"$device_b\"]"
configure c 3 'policy = "forbid"'
for node in b c; do start "$node"; done
tries=0
until [ -S "$work/b/sock" ] && [ -S "$work/c/sock" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || fail "b and c do not start"
    sleep 0.1
done
status=0
tenon --json doctor --config "$work/a/tenond.toml" || status=$?
kill "$pid_b" "$pid_c"
wait "$pid_b" "$pid_c" || true
exit "$status"
