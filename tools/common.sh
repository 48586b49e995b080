# Sourced by the tools: makes virtual environments of the project's own.

# make_venv DIR REQUIREMENT...: a venv with torch and the requirements, at the pinned versions.
make_venv() {
    _make_venv "$1" "$(_package)" torch "${@:2}"
}

# make_pinned_venv DIR FILE: a venv with torch and what FILE pins, which has to be everything: nothing is resolved.
make_pinned_venv() {
    local constraints=$2
    _make_venv "$1" "$(cat "$2"; _package)" torch --no-deps -r "$2" -e .
}

# make_small_pinned_venv DIR FILE: the same without torch.
make_small_pinned_venv() {
    local constraints=$2
    _make_venv "$1" "$(cat "$2"; _package)" --no-deps -r "$2" -e .
}

# make_tools_venv DIR REQUIREMENT...: a venv with the requirements alone, at the pinned versions.
make_tools_venv() {
    _make_venv "$1" "" "${@:2}"
}

# What the package is made of, except its Python: installed anew when that changes.
_package() {
    cat pyproject.toml hatch_build.py
    find src/iotrace -name '*.[ch]' | LC_ALL=C sort | xargs cat
}

# _make_venv DIR INPUTS REQUIREMENT...: made anew when Python, a pinned version or INPUTS (a text) change.
_make_venv() {
    local directory=$1 inputs=$2
    shift 2
    local python=${PYTHON:-python3} stamp wanted
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "$0: needs Python 3.10 or newer as python3 (or PYTHON=/path/to/python)" >&2
        exit 1
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$0: Python's venv module is missing; on Debian: apt install python3-venv" >&2
        exit 1
    fi
    wanted=$("$python" -V; cat constraints.txt; printf "%s\n" "$inputs" "$@")
    stamp=$directory/installed
    if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
        echo "installing into $directory (some minutes the first time) ..."
        "$python" -m venv --clear "$directory"
        if [ "$1" = torch ]; then # by itself and first: another requirement would pull its largest build
            _install "$directory" torch
            shift
        fi
        _install "$directory" "$@"
        printf '%s' "$wanted" > "$stamp"
    fi
}

_install() {
    "$1/bin/python" -m pip install -q --disable-pip-version-check -c "${constraints:-constraints.txt}" "${@:2}"
}
