#!/usr/bin/env bash
# Make what the tests of the page need: playwright's Python package under .venv-clients/browser/, Debian's chromium and espeak-ng where they
# are missing and may be installed. A list that has not changed is left as it is. PYTHON chooses the interpreter.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
home="$here/../../.venv-clients"

missing=()
command -v chromium > /dev/null || missing+=(chromium)
command -v espeak-ng > /dev/null || missing+=(espeak-ng)
if [ "${#missing[@]}" -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
        echo "please install: ${missing[*]} (apt-get install ${missing[*]})" >&2
        exit 1
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
fi

mkdir -p "$home"
echo '*' > "$home/.gitignore"
exec 9> "$home/.lock"
flock 9 # one at a time: tests may run in several processes
stamp="$home/browser/$(sha256sum "$here/requirements.txt" | cut -c1-16).stamp"
[ -e "$stamp" ] && exit 0
rm -rf "${home:?}/browser"
"${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --no-deps --target "$home/browser" -r "$here/requirements.txt"
touch "$stamp"
