"""What a command imports, and what the command line says about itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from iotrace.cli import app
from iotrace.cli.usage import describe
from tests.support.runs import in_process

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
_SERVER = ("starlette", "uvicorn", "iotrace.ui")


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
    assert len(_below(modules, "iotrace")) < 110
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
    assert _below(modules, *_OTHERS, *_HEAVY, *_SERVER) == []


def test_a_list_of_sessions_imports_no_analysis() -> None:
    code = "import sys, iotrace.report.listing; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert _below({*done.stdout.split()}, "iotrace.analysis", "numpy", "rich") == []


def test_the_version_imports_nothing_else() -> None:
    modules = _imported("--version")
    assert _below(modules, *_OTHERS, *_HEAVY, *_SERVER, "numpy", "msgspec", "rich", "iotrace.analysis") == []


def _iotrace(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "iotrace", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


_COMMANDS = (
    "run",
    "top",
    "report",
    "ls",
    "ui",
    "compare",
    "check",
    "patch",
    "sweep",
    "doctor",
    "merge",
    "export",
    "mcp",
    "schema",
    "rules",
    "explain",
)


def test_without_a_command_the_help_is_printed() -> None:
    done = _iotrace()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: iotrace")
    assert all(f"\n  {name} " in done.stdout for name in _COMMANDS)
    assert "..." not in done.stdout.partition("Commands:")[2]  # each sentence fits


@pytest.mark.parametrize("name", _COMMANDS)
def test_each_command_names_its_exit_codes(name: str) -> None:
    done = _iotrace(name, "-h")
    assert done.returncode == 0
    assert "Exit codes:" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["bogus"], 2, "there is no command bogus"),
        (["reprot"], 2, "there is no command reprot: did you mean report?"),
        (["--bogus"], 2, "there is no option --bogus"),
        (["report", "--bogus"], 2, "there is no option --bogus"),
        (["merge", "--per"], 2, "there is no option --per: did you mean --per-rank?"),
        (["report", "x", "--kernel-gap-us", "-1"], 2, "--kernel-gap-us takes a number of at least 0"),
        (["report", "x", "--kernel-gap-us", "few"], 2, "--kernel-gap-us takes a number of at least 0"),
        (["run", "--telemetry-interval", "1", "true"], 125, "takes a whole number from 20 to 1000"),
        (["run", "--max-size", "lots", "true"], 125, "--max-size takes a size of at least 1MiB, or off"),
        (["report", "x", "--compat", "zz"], 2, "--compat is tb or hta"),
        (["report", "x", "--json=yes"], 2, "--json takes no value"),
        (["merge", "-o"], 2, "-o needs a value: -o FILE"),
        (["merge"], 2, "there are no inputs"),
        (["merge", "--align", "end", "x"], 2, "--align is start, not end"),
        (["merge", "--steps", "9:1", "x"], 2, "--steps takes two numbers"),
        (["export", "x"], 2, "-o FILE is missing"),
        (["export", "-o", "y"], 2, "SESSION is missing"),
        (["schema"], 2, "SUBJECT is missing"),
        (["schema", "else"], 2, "SUBJECT is report, "),
        (["schema", "report", "merge"], 2, "there is one argument too many: merge"),
        (["explain"], 2, "CODE|NAME is missing"),
        (["explain", "IO2O4"], 2, "there is no rule IO2O4: did you mean IO2"),
        (["explain", "too-few-worker"], 2, "did you mean IO204"),
        (["explain", "zz"], 2, "there is no rule zz"),
        (["run", "--bogus"], 125, "there is no option --bogus"),
        (["run"], 125, "no command was given"),
    ],
)
def test_wrong_usage_is_a_sentence_of_ours_and_the_next_command(
    words: list[str], code: int, said: str
) -> None:
    done = in_process(*words)
    assert (done.returncode, done.stdout) == (code, "")
    sentence, remedy = done.stderr.splitlines()
    assert sentence.startswith("iotrace: ")
    assert said in sentence
    assert "iotrace" in remedy
    assert not re.search(r"Error|Invalid|Missing|Usage:|No such|is not one of|'-", done.stderr)


def test_a_type_of_clicks_without_a_sentence_is_no_leak() -> None:
    unknown = click.UsageError("Something that only click says.")
    assert describe(unknown, app) == "the command line cannot be understood"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_for_a_shell(tmp_path: Path, shell: str) -> None:
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "", "SHELL": f"/bin/{shell}"}
    done = _iotrace("--install-completion", **home)
    assert done.returncode == 0, done.stderr
    (script,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert f"wrote {script}; no other file was changed\n" in done.stdout
    assert done.stdout.endswith(f"to undo: rm {script}\n")
    assert script.read_text().strip() == _iotrace("--show-completion", shell, **home).stdout.strip()
    asked = _iotrace(_IOTRACE_COMPLETE="bash_complete", COMP_WORDS="iotrace re", COMP_CWORD="1")
    assert asked.stdout.split() == ["plain,report"]


def test_an_unknown_shell_is_refused() -> None:
    done = _iotrace("--show-completion", SHELL="/bin/tcsh")
    assert done.returncode == 2
    assert "bash, zsh, fish" in done.stderr
