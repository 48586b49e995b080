# Sourced by the tools: makes a virtual environment of the project's own.

# make_venv DIR REQUIREMENT...: a venv with torch and the requirements, at the pinned versions.
make_venv() {
    local directory=$1
    shift
    local python=${PYTHON:-python3} stamp wanted
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "$0: needs Python 3.10 or newer as python3 (or PYTHON=/path/to/python)" >&2
        exit 1
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$0: Python's venv module is missing; on Debian: apt install python3-venv" >&2
        exit 1
    fi
    # Installed anew when what it was made of changes.
    wanted=$("$python" -V; cat constraints.txt pyproject.toml hatch_build.py src/iotrace/sources/chrome/*.c src/iotrace/timeline/writers/*.c; printf "%s\n" "$@")
    stamp=$directory/installed
    if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
        echo "installing into $directory (some minutes the first time) ..."
        "$python" -m venv --clear "$directory"
        # torch by itself and first: another requirement would pull its largest build.
        "$directory/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt torch
        "$directory/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt "$@"
        printf '%s' "$wanted" > "$stamp"
    fi
}
