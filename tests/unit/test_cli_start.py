"""What a command imports, and what the command line says about itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_LIST = """
import json, os, sys
from iotrace.cli import _main
code = _main(json.loads(sys.argv[1]))
dataclasses = [
    f"dataclass {name}.{key}"
    for name, module in sys.modules.items() if name.startswith("iotrace")
    for key, value in vars(module).items()
    if isinstance(value, type) and value.__module__ == name and "__dataclass_fields__" in vars(value)
]
threads = [f"thread {number}" for number in os.listdir("/proc/self/task")]
changed = [f"variable {key}" for key in os.environ if key.startswith("OPENBLAS")]
print("\\n" + json.dumps([code, sorted([*sys.modules, *dataclasses, *threads, *changed])]))
"""
# A command that only reads pays for neither the launcher, the checks nor the other commands.
_OTHERS = ("iotrace.launch", "iotrace.doctor", "iotrace.sweeps", "iotrace.merge", "iotrace.export")
_HEAVY = ("torch", "h5py", "zarr", "pandas", "pydantic", "typer", "psutil", "rich.progress", "rich.live")


def _imported(*words: str, cwd: Path | None = None) -> set[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS")}
    done = subprocess.run(
        [sys.executable, "-c", _LIST, json.dumps(words)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    code, modules = json.loads(done.stdout.rpartition("\n")[0].rpartition("\n")[2])
    assert code == 0, done.stderr
    return set(modules)


def _below(modules: set[str], *packages: str) -> list[str]:
    return sorted(name for name in modules for package in packages if f"{name}.".startswith(f"{package}."))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    step = {
        "ph": "X",
        "name": "ProfilerStep#1",
        "cat": "user_annotation",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 9,
    }
    path.write_text(json.dumps({"traceEvents": [step]}))
    return path


def test_a_report_as_json_imports_no_terminal(trace: Path) -> None:
    modules = _imported("report", "--json", str(trace))
    assert _below(modules, *_OTHERS, *_HEAVY, "rich", "iotrace.report.terminal", "iotrace.postrun") == []
    assert len(_below(modules, "iotrace")) < 100
    # A dataclass compiles its methods at import: 1 ms each, where a Struct takes 0.05.
    assert [name for name in modules if name.startswith("dataclass ")] == []


@pytest.mark.parametrize("words", [["report", "--json"], ["merge", "--json", "-o", "out.json"]])
def test_numpy_starts_no_threads_and_the_environment_stays(
    trace: Path, tmp_path: Path, words: list[str]
) -> None:
    modules = _imported(*words, str(trace), cwd=tmp_path)
    assert "numpy" in modules
    assert len([name for name in modules if name.startswith("thread ")]) == 1
    assert [name for name in modules if name.startswith("variable ")] == []


def test_a_report_imports_what_it_prints_with(trace: Path) -> None:
    modules = _imported("report", str(trace))
    assert _below(modules, *_OTHERS, *_HEAVY) == []


def test_the_version_imports_nothing_else() -> None:
    modules = _imported("--version")
    assert _below(modules, *_OTHERS, *_HEAVY, "numpy", "msgspec", "rich", "iotrace.analysis") == []


def _iotrace(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "iotrace", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_without_a_command_the_help_is_printed() -> None:
    done = _iotrace()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: iotrace")
    commands = ("run", "report", "sweep", "doctor", "merge", "export", "schema")
    assert all(f"\n  {name} " in done.stderr for name in commands)


@pytest.mark.parametrize("name", ["run", "report", "sweep", "doctor", "merge", "export", "schema"])
def test_each_command_names_its_exit_codes(name: str) -> None:
    done = _iotrace(name, "-h")
    assert done.returncode == 0
    assert "Exit codes:" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["bogus"], 2, "No such command 'bogus'"),
        (["report"], 2, "Missing argument"),
        (["report", "x", "--kernel-gap-us", "-1"], 2, "'--kernel-gap-us': -1.0 is not in the range"),
        (["report", "x", "--compat", "zz"], 2, "'zz' is not one of 'tb', 'hta'"),
        (["run", "--bogus"], 125, "No such option"),
    ],
)
def test_wrong_usage_is_a_sentence(words: list[str], code: int, said: str) -> None:
    done = _iotrace(*words)
    assert done.returncode == code
    assert said in done.stderr
    assert "see: iotrace" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_for_a_shell(tmp_path: Path, shell: str) -> None:
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "", "SHELL": f"/bin/{shell}"}
    done = _iotrace("--install-completion", **home)
    assert done.returncode == 0, done.stderr
    (script,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert str(script) in done.stdout
    assert script.read_text().strip() == _iotrace("--show-completion", shell, **home).stdout.strip()
    asked = _iotrace(_IOTRACE_COMPLETE="bash_complete", COMP_WORDS="iotrace re", COMP_CWORD="1")
    assert asked.stdout.split() == ["plain,report"]


def test_an_unknown_shell_is_refused() -> None:
    done = _iotrace("--show-completion", SHELL="/bin/tcsh")
    assert done.returncode == 2
    assert "bash, zsh, fish" in done.stderr
