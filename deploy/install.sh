#!/bin/sh
# Installs Octet's binary for this system: downloads the archive of a release, checks its SHA-256 sum, and puts `octet` into a folder.
#
#   sh install.sh                       the latest release, into ~/.local/bin
#   OCTET_VERSION=v0.2.0 OCTET_BIN=/usr/local/bin sh install.sh
#
# OCTET_RELEASES is the address of the releases, for a mirror.
set -eu

fail() { echo "install.sh: $1" >&2; exit 1; }
need() { command -v "$1" > /dev/null 2>&1 || fail "$1 is needed and is not installed"; }

releases=${OCTET_RELEASES:-@REPOSITORY@/releases}
case $releases in @*) fail "set OCTET_RELEASES to the address of the releases, or take install.sh from a release" ;; esac
version=${OCTET_VERSION:-latest}
bin=${OCTET_BIN:-$HOME/.local/bin}
need curl
need tar

case $(uname -s) in
    Linux) system=unknown-linux-gnu ;;
    Darwin) system=apple-darwin ;;
    *) fail "there is no binary for $(uname -s); build it: cargo install --path crates/cli" ;;
esac
case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no binary for $(uname -m); build it: cargo install --path crates/cli" ;;
esac
archive=octet-$machine-$system.tar.gz
if [ "$version" = latest ]; then from=$releases/latest/download; else from=$releases/download/$version; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo "Downloading $from/$archive"
curl -fL --proto-redir =https --progress-bar -o "$archive" "$from/$archive" || fail "the archive cannot be downloaded"
curl -fsSL --proto-redir =https -o SHA256SUMS "$from/SHA256SUMS" || fail "the sums cannot be downloaded"
wanted=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$archive\$/\1/p" SHA256SUMS)
[ -n "$wanted" ] || fail "SHA256SUMS has no line for $archive"
if command -v sha256sum > /dev/null 2>&1; then sum=$(sha256sum "$archive"); else sum=$(shasum -a 256 "$archive"); fi
[ "${sum%% *}" = "$wanted" ] || fail "the archive's SHA-256 sum is ${sum%% *}, not $wanted"

tar -xzf "$archive"
mkdir -p "$bin"
install -m 755 octet/octet "$bin/octet"
"$bin/octet" --version
echo "Installed as $bin/octet"
case :$PATH: in *:"$bin":*) ;; *) echo "Add $bin to your PATH to call it as octet." ;; esac
