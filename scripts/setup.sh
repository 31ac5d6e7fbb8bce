#!/usr/bin/env bash
# Installs the system packages that are missing, on Debian and what derives from it. `setup.sh run`: what building and
# running need; `setup.sh test`: what the tests need on top. Does nothing if nothing is missing.
set -euo pipefail

purpose=${1:-run}
rust_min=1.95
# A user's PATH may lack the administrator's programs, which are there all the same.
PATH=$PATH:/usr/sbin:/sbin

fail() {
    echo "setup: $*" >&2
    exit 1
}

packages=()
need() { # command package
    command -v "$1" >/dev/null || packages+=("$2")
}
need_file() { # pattern package
    compgen -G "$1" >/dev/null || packages+=("$2")
}
need cc build-essential
# What the bindings of libibverbs are made with.
need cmake cmake
need clang clang
need_file "/usr/lib/llvm-*/lib/libclang*.so*" libclang-dev
need curl curl
if [ "$purpose" = test ]; then
    need systemd-analyze systemd
    need ip iproute2
    # The machine with RDMA devices (integration/src/machine).
    need qemu-system-x86_64 qemu-system-x86
    need busybox busybox-static
    need modprobe kmod
    need xz xz-utils
    need zstd zstd
    need ib_read_bw perftest
    need_file "/usr/lib/*/libibverbs/librxe-rdmav*.so" ibverbs-providers
    # The witness (integration/witness), which builds headers of libibverbs and is linked with it.
    need pkg-config pkg-config
    need_file "/usr/include/infiniband/verbs.h" libibverbs-dev
fi

# The machine's kernel is downloaded when it is first needed; apt must know it by then.
lists_missing=false
if [ "$purpose" = test ] && command -v apt-cache >/dev/null && ! apt-cache show linux-image-amd64 >/dev/null 2>&1; then
    lists_missing=true
fi

if [ "${#packages[@]}" -gt 0 ] || "$lists_missing"; then
    command -v apt-get >/dev/null || fail "install ${packages[*]} (names of Debian packages), then run this again"
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "as root: apt-get update && apt-get install -y ${packages[*]}; then run this again"
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update -qq
fi
if [ "${#packages[@]}" -gt 0 ]; then
    echo "setup: installing ${packages[*]}"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

command -v cargo >/dev/null || fail "cargo is missing: install Rust $rust_min or newer, for example from https://rustup.rs"
# With rustup, rust-toolchain.toml chooses the version (and this installs it); without, the system's must be new enough.
found=$(cargo --version | awk '{print $2}')
oldest=$(printf '%s\n%s\n' "$rust_min" "$found" | sort -V | head -n 1)
[ "$oldest" = "$rust_min" ] || fail "Rust $found is too old, $rust_min is needed"
if [ "$purpose" = test ]; then
    for tool in cargo-fmt cargo-clippy; do
        command -v "$tool" >/dev/null || fail "$tool is missing: rustup component add rustfmt clippy"
    done
fi
