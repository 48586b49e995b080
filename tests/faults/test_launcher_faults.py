"""What surrounds the launcher."""

from __future__ import annotations

import os

import pytest

from tests.faults.harness import Trial
from tests.faults.rows import row

UNUSABLE = b"raise RuntimeError('made for another Python')"
# What the launcher and the agent import: of others, of the standard library, and iotrace itself.
SHADOWED = ("msgspec", "click", "numpy", "iotrace", "re")
USED_BY_AGENT = ("_json", "_struct", "fcntl")
IMPORTS = """
import sys
for name in sys.argv[1:]:
    try:
        module = __import__(name)
        print(name, getattr(module, "OWN", None), flush=True)
    except RuntimeError as error:
        print(name, error)
print(sys.path[1:])
"""


@row(
    "PYTHONPATH holds unusable packages of another Python, and an iotrace",
    kept="what the program imports, its PYTHONPATH; the launcher and the agent use their own",
    lost="nothing",
    default=True,
)
def test_packages_of_another_python(trial: Trial) -> None:
    trial.files = {f"other/{name}.py": UNUSABLE for name in (*SHADOWED, *USED_BY_AGENT)}
    path = os.pathsep.join(filter(None, ["other", os.environ.get("PYTHONPATH", "")]))
    pair = trial.both(IMPORTS, *SHADOWED, env={"PYTHONPATH": path}, python=["-u"])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert len(pair.report["processes"]) == 1


@row(
    "the program has modules json, msgspec and iotrace of its own beside it",
    kept="they are what it imports",
    lost="nothing",
)
def test_modules_of_the_same_name(trial: Trial) -> None:
    for name in ("json", "msgspec", "iotrace"):
        (trial.directory / f"{name}.py").write_text("OWN = __name__")
    pair = trial.both(IMPORTS, "json", "msgspec", "iotrace")
    pair.assert_same()
    pair.assert_nothing_lost()
    assert "iotrace iotrace" in pair.traced.stdout


LEAVES_NOTHING = """
import os, shutil, sys
here = os.getcwd()
os.chdir("/")
shutil.rmtree(here)
print("done", flush=True)
sys.exit(int(sys.argv[1]))
"""


@row(
    "the program deletes its working directory, and the session in it",
    kept="the program's exit code",
    lost="the session",
    default=True,
)
@pytest.mark.parametrize("code", [0, pytest.param(3, marks=pytest.mark.fault)])
def test_the_working_directory_is_deleted(trial: Trial, code: int) -> None:
    pair = trial.both(LEAVES_NOTHING, str(code), options=["-o", "session"])
    assert (pair.traced.code, pair.traced.stdout) == (pair.bare.code, pair.bare.stdout) == (code, "done\n")
    assert pair.traced.stderr == ""
