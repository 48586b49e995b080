"""What is recorded of a thread that gets batches from a queue: its waits, and polls in vain."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from iotrace.agent import handovers
from iotrace.agent.patching import undo_all
from iotrace.agent.recording.recorder import Recorder
from tests.support.rows import told


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    found = Recorder(str(tmp_path))
    handovers.install(found)
    yield found
    undo_all()
    handovers.after_fork_in_child()


def polled(of: queue.Queue[int]) -> None:
    with pytest.raises(queue.Empty):
        of.get_nowait()


def test_polls_in_vain_are_part_of_the_wait_that_they_belong_to(recorder: Recorder) -> None:
    filled: queue.Queue[int] = queue.Queue()
    other: queue.Queue[int] = queue.Queue()
    polled(filled)
    polled(other)
    polled(filled)
    assert recorder.records == []
    filled.put(1)
    assert filled.get_nowait() == 1
    put, got = told(recorder.records)
    assert (put["call"], got["call"], got["queue"]) == ("put", "get", id(filled))
    assert got["start_ns"] < put["start_ns"] <= got["end_ns"]


def test_polls_before_training_are_no_wait(recorder: Recorder) -> None:
    commands: queue.Queue[int] = queue.Queue()
    polled(commands)
    handovers.trained()
    commands.put(1)
    commands.get()
    put, got = told(recorder.records)
    assert got["start_ns"] >= put["end_ns"]


def test_what_ends_a_thread_is_recorded_and_shown_as_ever(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[type[BaseException], str]] = []

    def hook(args: threading.ExceptHookArgs) -> None:
        assert args.thread is not None
        shown.append((args.exc_type, args.thread.name))

    def feed() -> None:
        raise OSError("no more shards")

    def leave() -> None:
        raise SystemExit(3)

    monkeypatch.setattr(threading, "excepthook", hook)
    for name, target in (("leaver", leave), *((f"feeder {number}", feed) for number in range(30))):
        thread = threading.Thread(target=target, name=name)
        thread.start()
        thread.join()
    failures = [each for each in told(recorder.records) if each.get("type") == "failure"]
    assert [each["thread"] for each in failures] == [f"feeder {number}" for number in range(20)]
    assert {each["error"] for each in failures} == {"OSError"}
    assert failures[0]["text"].endswith("OSError: no more shards\n")
    assert shown[1:] == [(OSError, f"feeder {number}") for number in range(30)]
