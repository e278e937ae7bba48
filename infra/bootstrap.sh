#!/bin/sh
# Make the environment from the committed lock, with uv. If the machine has no suitable uv, install it in the state
# folder.
#   bootstrap.sh PYTHON STATE_DIR [uv sync options]
set -eu
python=$1 state=$2
shift 2

say() { printf '%s\n' "$*" >&2; }

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null || {
    say "error: Python 3.11, 3.12 or 3.13 is needed"
    say "  evidence: $("$python" --version 2>&1)"
    say "  next step: install one, or name it: make PYTHON=/path/to/python3.12 demo"
    exit 1
}

# The mark by which `make clean` knows that it may remove this folder.
if [ -z "$(ls -A "$state" 2>/dev/null)" ]; then
    mkdir -p "$state"
    : > "$state/.harvest-state"
fi

# An installed uv is used if it is new enough to read the lock, audit it and write a bill of materials.
oldest=0.13.8
uv=$(command -v uv || true)
if [ -n "$uv" ]; then
    found=$("$uv" --version 2>/dev/null | awk '{ print $2 }')
    [ "$(printf '%s\n%s\n' "$oldest" "${found:-0}" | sort -V | head -n 1)" = "$oldest" ] || uv=
fi
if [ -z "$uv" ]; then
    uv=$state/uv/bin/uv
    found=$("$uv" --version 2>/dev/null | awk '{ print $2 }') || found=
    if [ "$(printf '%s\n%s\n' "$oldest" "${found:-0}" | sort -V | head -n 1)" != "$oldest" ]; then
        say "bringing uv into $state/uv"
        mkdir -p "$state"
        if "$python" -m venv "$state/uv" >/dev/null 2>&1; then
            "$state/uv/bin/python" -m pip install --quiet --disable-pip-version-check "uv>=$oldest"
        elif "$python" -m pip --version >/dev/null 2>&1; then
            "$python" -m pip install --quiet --disable-pip-version-check --upgrade --target "$state/uv/lib" "uv>=$oldest"
            mkdir -p "$state/uv/bin"
            ln -sf ../lib/bin/uv "$uv"
        else
            say "error: this Python has neither venv nor pip"
            say "  next step: install one of them (on Debian and Ubuntu: apt-get install python3-venv), or uv itself"
            exit 1
        fi
    fi
fi

# The user's settings for other projects must change neither the installed packages nor their folder.
unset UV_PROJECT UV_WORKING_DIRECTORY UV_NO_BUILD UV_NO_BINARY UV_NO_EDITABLE UV_LOCKED VIRTUAL_ENV || true
"$uv" sync --quiet --frozen --no-progress --python "$python" "$@"
if [ "$(uname -s)" = Linux ] && [ ! -e harvest_lib/native/hand_over.so ]; then
    say "note: the library in C was not built, as there is no C compiler here or it refused; Python does its work, slower"
fi
