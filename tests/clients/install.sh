#!/usr/bin/env bash
# Make the environments of the real clients under .venv-clients/: tests/clients/install.sh [NAME...], without names all of them.
# An environment whose list has not changed is left as it is. PYTHON chooses the interpreter.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
home="$here/../../.venv-clients"
names=("$@")
[ "${#names[@]}" -gt 0 ] || names=(beta agents pipecat livekit node)

mkdir -p "$home"
echo '*' > "$home/.gitignore"
exec 9> "$home/.lock"
flock 9 # one at a time: tests may run in several processes
for name in "${names[@]}"; do
    list="$here/environments/$name.txt"
    [ "$name" = node ] && list="$here/environments/package-lock.json"
    stamp="$home/$name/$(sha256sum "$list" | cut -c1-16).stamp"
    [ -e "$stamp" ] && continue
    rm -rf "${home:?}/$name"
    if [ "$name" = node ]; then
        mkdir -p "$home/node"
        cp "$here"/environments/package*.json "$home/node/"
        (cd "$home/node" && npm ci --silent --no-audit --no-fund --loglevel=error)
    else
        "${PYTHON:-python3}" -m venv "$home/$name"
        "$home/$name/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r "$list"
    fi
    touch "$stamp"
done
