"""What computes before the loop is named by sampled stacks: real ones are taken, made-up ones are named."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest

from iotrace.agent.recording import startup_stacks
from iotrace.agent.recording.startup_stacks import StartupStacks
from iotrace.analysis.startup.imports import name_of, sampled_of
from iotrace.analysis.startup.waterfall import NOT_NAMED, Range, painted
from iotrace.sources.processes import Process
from iotrace.sources.records import IteratorStart, StartupStacks as Recorded

TORCH = "/x/site-packages/torch/"
MAIN = ("/home/me/train.py", "main")


def test_a_thread_is_sampled_while_it_runs() -> None:
    stop = threading.Event()
    taken: list[StartupStacks] = []

    def computes() -> None:
        taken.append(StartupStacks())
        while not stop.is_set():
            time.sleep(0.001)

    thread = threading.Thread(target=computes)
    thread.start()
    while not taken:
        time.sleep(0.001)
    for _ in range(3):
        taken[0].sample()
        time.sleep(0.01)
    stop.set()
    thread.join()
    taken[0].sample()  # it has ended
    record = taken[0].record()
    recorded = msgspec.convert({key: record[key] for key in record if key != "type"}, Recorded)
    assert recorded.numbers[-1] == -1
    functions = [recorded.functions[at][1] for at in recorded.stacks[0]]
    assert any("computes" in name for name in functions)
    assert recorded.ends_ns == sorted(recorded.ends_ns)
    assert recorded.ends_ns[0] > recorded.began_ns


def test_stacks_alike_are_one_and_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = StartupStacks()
    for _ in range(3):
        stacks.sample()
    monkeypatch.setattr(startup_stacks, "_IMPORTING", __file__)
    stacks.sample()
    assert stacks.record()["numbers"] == [0, -1]
    assert 0.05 <= stacks.interval_s < 1


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        ([(f"{TORCH}nn/init.py", "kaiming_uniform_"), MAIN], "model"),
        ([(f"{TORCH}nn/modules/linear.py", "Linear.__init__"), MAIN], "model"),
        ([("/home/me/net.py", "Net.table"), ("/home/me/net.py", "Net.__init__"), MAIN], "model"),
        # A module that is called builds nothing.
        (
            [
                (f"{TORCH}nn/modules/linear.py", "forward"),
                (f"{TORCH}nn/modules/module.py", "_call_impl"),
                MAIN,
            ],
            "main (train.py)",
        ),
        ([("/home/me/data.py", "scan"), ("/home/me/data.py", "Volumes.__init__"), MAIN], "dataset Volumes"),
        ([("/home/me/data.py", "scan"), ("/home/me/data.py", "Other.__init__"), MAIN], "scan (data.py)"),
        ([(f"{TORCH}_dynamo/convert_frame.py", "compile"), MAIN], "compile"),
        ([(f"{TORCH}distributed/distributed_c10d.py", "init_process_group"), MAIN], "process group"),
        ([(f"{TORCH}serialization.py", "load"), MAIN], "weights"),
        ([("/usr/lib/python3.11/json/decoder.py", "decode"), MAIN], "main (train.py)"),
        ([("/home/me/train.py", "<module>")], "train.py"),
        # An installed command: its package is the program.
        (
            [
                ("/x/site-packages/numpy/linalg.py", "norm"),
                ("/x/site-packages/made/graphs.py", "build"),
                ("/x/site-packages/other/run.py", "call"),
                ("/x/site-packages/made/main.py", "main"),
                ("/x/bin/made-training", "<module>"),
            ],
            "build (graphs.py)",
        ),
        ([("/x/bin/made-training", "<module>")], "made-training"),
        ([("/usr/lib/python3.11/runpy.py", "run")], ""),
    ],
)
def test_a_stack_has_a_name(stack: list[tuple[str, str]], name: str) -> None:
    assert name_of(stack, {"Volumes"}, {"Net"}) == name


def test_what_was_sampled_fills_what_nothing_else_names() -> None:
    start = IteratorStart(
        iterator=0, loader=0, dataset="Volumes", workers=0, epoch=0, generation=0, mono_ns=0
    )
    record = Recorded(
        tid=1,
        began_ns=10,
        ends_ns=[30, 50, 60],
        numbers=[0, 7, -1],
        stacks=[[0]],
        functions=[("/home/me/train.py", "main")],
    )
    clock = SimpleNamespace(times_to_session_ns=lambda times: times)
    process = SimpleNamespace(
        clock=clock, of_type=lambda kind: [each for each in (record, start) if isinstance(each, kind)]
    )
    sampled = sampled_of(cast(Process, process))
    assert sampled is not None
    assert sampled.at(np.array([9, 10, 29, 30, 49, 60])) == [
        "",
        "main (train.py)",
        "main (train.py)",
        "",
        "",
        "",
    ]
    assert painted([Range("import a", 20, 25)], 0, 100, sampled) == {
        NOT_NAMED: (0, 80),
        "\0main (train.py)": (10, 15),
        "import a": (20, 5),
    }
