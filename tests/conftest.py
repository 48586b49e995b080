"""Fixtures that every room's tests share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.runs import UNET, Run, run_traced


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the big matrices too")
    parser.addoption("--mutations", type=int, default=5000, help="how many damaged traces are merged")


def pytest_configure() -> None:
    # A shell's background job ignores Ctrl-C, and would pass that on to the commands that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="a big matrix: run it with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def mutations(request: pytest.FixtureRequest) -> int:
    """How many damaged inputs a test tries."""
    count: int = request.config.getoption("--mutations")
    return count


@pytest.fixture(scope="session")
def unet_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the U-Net's volumes have been made."""
    directory = tmp_path_factory.mktemp("unet")
    made = run_traced(directory, [UNET, "--workers", "0", "--steps", "1"])
    assert made.code == 0, made.stderr
    return directory


@pytest.fixture(scope="session")
def unet_run(unet_directory: Path) -> Run:
    """A traced run of the U-Net with two workers, 16 steps."""
    run = run_traced(unet_directory, [UNET, "--workers", "2", "--steps", "16"])
    assert run.code == 0, run.stderr
    return run
