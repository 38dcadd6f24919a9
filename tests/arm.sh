#!/usr/bin/env bash
# The ARM kernels on an x86-64 machine: compiles the tests of octet-compute for 64-bit ARM and runs them in qemu, which knows dot products
# and i8mm. .ci/run calls it. 'tests/arm.sh all' compares tiny models' logits with transformers' too, which takes a quarter of an hour: it
# runs them on every instruction set, and the reference backend is slow in an emulator.
#
# Takes the standard library of the Rust that is installed, where it has one for aarch64-unknown-linux-gnu (rustup target add), and Debian's
# compiler and library else, unpacked under target/. Installs an emulator and a linker.
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:-kernels}
triple=aarch64-unknown-linux-gnu
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
root=$target/arm

if ! command -v qemu-aarch64 > /dev/null || ! command -v aarch64-linux-gnu-gcc > /dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross
fi

if [ ! -d "$(rustc --print target-libdir --target $triple)" ]; then
    if [ ! -x "$root/rustc" ]; then
        # Lists and packages of both architectures, in folders of their own.
        mkdir -p "$root"/lists/partial "$root"/archives/partial
        apt=(-o "Dir::State::lists=$root/lists" -o "Dir::Cache::archives=$root/archives" -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
             -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root)
        apt-get "${apt[@]}" update -qq
        apt-get "${apt[@]}" install -y -qq --no-install-recommends --download-only rustc-web
        (cd "$root/archives" && apt-get "${apt[@]}" download -qq libstd-rust-web-dev:arm64)
        for package in "$root"/archives/*.deb; do dpkg -x "$package" "$root"; done
        # Its libraries are found by this program alone.
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s/usr/bin/rustc "$@"\n' "$root/usr/lib/x86_64-linux-gnu" "$root" > "$root/rustc"
        chmod +x "$root/rustc"
    fi
    export RUSTC="$root/rustc"
fi

export CARGO_BUILD_TARGET=$triple CARGO_TARGET_DIR="$root/target" CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu"
# Attention at a real model's size takes minutes in an emulator; smaller shapes of the same code are tested.
cargo test --locked -p octet-compute --lib -- --skip the_shape_of_the_real_model
if [ "$part" = all ]; then
    cargo test --locked -p octet-engine --test engine -- moe_golden golden::qwen golden::llama
fi
