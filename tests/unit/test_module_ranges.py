"""Names of modules' ranges: which modules hold others, without a search among all objects."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from iotrace.agent import patching
from iotrace.agent.recording import regions
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.torch_profiler.module_ranges import hook_modules, names, parents
from iotrace.session.names import MODULE_RANGE


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])


class Unreadable(Block):
    def __setstate__(self, state: object) -> None:
        super().__setstate__(state)
        raise ValueError("not mine")


@pytest.fixture(autouse=True)
def hooked(tmp_path: Path) -> Iterator[None]:
    hook_modules(nn.modules.module, Recorder(str(tmp_path)))
    regions.ask_compiler(torch.compiler.is_compiling)
    yield
    regions.ask_compiler(None)
    patching.undo_all()
    assert not nn.modules.module._global_module_registration_hooks
    assert not hasattr(nn.Module.__setstate__, patching.MARKER)
    gc.collect()
    assert parents.alive() == []


def named(module: nn.Module) -> dict[str, str]:
    """What the ranges of `module`'s own modules are called, by torch's name for them."""
    found = names(nn.Module, parents.alive())
    return {name: found[id(each)][1].removeprefix(MODULE_RANGE) for name, each in module.named_modules()}


def expected(module: nn.Module) -> dict[str, str]:
    return {name: name or type(module).__name__ for name, _ in module.named_modules()}


def test_a_network_put_together() -> None:
    network = Network()
    assert named(network) == expected(network)
    assert named(network)["blocks.1.rest.0"] == "blocks.1.rest.0"


def test_a_network_that_grows_later() -> None:
    network = Network()
    network.blocks[1].rest.append(nn.Linear(2, 1))
    network.register_module("head", nn.Linear(2, 1))
    network.blocks.append(Block())
    assert named(network) == expected(network)


def test_copies_and_what_was_pickled() -> None:
    made = Network()
    copied = copy.deepcopy(made)
    read = pickle.loads(pickle.dumps(made))
    del made
    for network in (copied, read):
        assert named(network) == expected(network)


def test_the_smaller_kind_puts_its_class_before() -> None:
    network, other = Network(), Block()
    assert named(network) == expected(network)
    assert named(other)["rest.1"] == "Block.rest.1"


def test_a_wrapper_has_no_name() -> None:
    network = Network()
    wrapped = nn.DataParallel(network)
    assert named(network) == expected(network)
    del wrapped


def test_modules_that_are_gone_are_forgotten() -> None:
    network = Network()
    assert len(parents.alive()) == 6
    del network
    gc.collect()
    assert parents.alive() == []


def test_an_error_of_the_program_shows_no_frame_of_ours() -> None:
    state = Block().__dict__
    with pytest.raises(ValueError, match="not mine") as caught:
        Unreadable.__new__(Unreadable).__setstate__(state)
    assert all("/iotrace/agent/" not in str(entry.path) for entry in caught.traceback)
    with pytest.raises(TypeError) as raised:
        torch.nn.Module.__new__(nn.Linear).__setstate__(None)
    assert all("/iotrace/agent/" not in str(entry.path) for entry in raised.traceback)


def test_a_function_that_is_compiled_whole_may_put_modules_together() -> None:
    def build(values: torch.Tensor) -> torch.Tensor:
        return nn.Sequential(nn.ReLU())(values)

    compiled = torch.compile(build, backend="eager", fullgraph=True)
    assert compiled(-torch.ones(2)).sum() == 0
    torch._dynamo.reset()
