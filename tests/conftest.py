"""Fixtures that every room's tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.once import once, once_run
from tests.support.runs import UNET, Run, run_traced
from tests.support.workloads import WORKLOADS, make_data

# The same examples on every machine, whatever its load: a new one is looked for with --slow.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.register_profile("new", deadline=None, suppress_health_check=list(HealthCheck))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chromium", action="store_true", help="open pages in Chromium, which has to be there")
    parser.addoption("--faults", action="store_true", help="run all rows of tests/faults")
    parser.addoption("--programs", action="store_true", help="run all programs of tests/programs")
    parser.addoption("--sentences", action="store_true", help="run all programs of tests/sentences")
    parser.addoption("--try", action="store_true", help="try the fixes of all programs of tests/trials")
    parser.addoption("--external", action="store_true", help="real trackers and launchers: tests/external")
    parser.addoption("--slow", action="store_true", help="run the big matrices too")
    parser.addoption("--traces", metavar="DIR", help="compare the sums of each trace in DIR with SQL")
    parser.addoption("--mutations", type=int, help="how many damaged traces are merged (1500; 5000 if slow)")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are known: what is made for them stays, and there is no garbage in it
    # The suite starts hundreds of interpreters: without bytecode each would compile all that it imports.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    settings.load_profile("new" if config.getoption("--slow") else "same")
    if config.getoption("--slow") or config.getoption("--programs"):
        os.environ["IOTRACE_TESTS_WHOLE_TORCH"] = "1"
    # A shell's background job ignores Ctrl-C, and would pass that on to the commands that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = {"--faults": "fault", "--chromium": "chromium", "--sentences": "sentences", "--try": "trials"}
    for option, marker in chosen.items():
        if not config.getoption(option):
            left_out = [item for item in items if item.get_closest_marker(marker) is not None]
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=left_out)
    if config.getoption("--slow") or config.getoption("--programs"):
        return
    skip = pytest.mark.skip(reason="a big matrix, or one more library: run it with --slow")
    for item in items:
        if item.get_closest_marker("slow") is not None:  # not by name: the folder may be called so
            item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def mutations(request: pytest.FixtureRequest) -> int:
    """How many damaged inputs a test tries."""
    count: int | None = request.config.getoption("--mutations")
    return count or (5000 if request.config.getoption("--slow") else 1500)


@pytest.fixture(scope="session")
def unet_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the U-Net's volumes have been made; all of the suite's workers share it."""
    return Path(once(tmp_path_factory, "unet", _make_volumes))


@pytest.fixture(scope="session")
def unet_run(tmp_path_factory: pytest.TempPathFactory, unet_directory: Path) -> Run:
    """A traced run of the U-Net with two workers, 16 steps; all of the suite's workers share it."""
    return once_run(tmp_path_factory, "unet-run", lambda _: _trace_unet(unet_directory))


def _make_volumes(directory: Path) -> str:
    make_data(directory, [WORKLOADS["unet3d_hdf5"]])
    return str(directory)


def _trace_unet(directory: Path) -> Run:
    run = run_traced(directory, [UNET, "--workers", "2", "--steps", "16"])
    assert run.code == 0, run.stderr
    return run
