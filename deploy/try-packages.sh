#!/usr/bin/env bash
# Installs the wheel and the Debian package of a folder, each into a folder of its own, and asks each for an answer.
#     deploy/try-packages.sh FOLDER
set -euo pipefail
folder=$(realpath "${1:?usage: try-packages.sh FOLDER}")
clean=$(mktemp -d)
trap 'rm -rf "$clean"' EXIT

answer() {
    # Nothing of this user: no models, no settings.
    text=$(env -i HOME="$clean/home" PATH=/usr/bin:/bin "$1" run --no-think -n 40 "Tell me a story about a fox.")
    [ -n "$text" ] || { echo "$1 gives no answer" >&2; exit 1; }
    echo "$2: ${text:0:60}..."
}

wheel=$(ls "$folder"/*.whl)
python3 -m venv "$clean/venv"
"$clean/venv/bin/pip" install --quiet --no-index --no-deps "$wheel"
answer "$clean/venv/bin/octet" "$(basename "$wheel")"

if deb=$(ls "$folder"/*.deb 2> /dev/null); then
    dpkg-deb --extract "$deb" "$clean/root"
    answer "$clean/root/usr/bin/octet" "$(basename "$deb")"
fi
