"""What a dataset and a collate function hold: who feeds it, which tokenizer it uses."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import webdataset
from torch.utils.data.datapipes.iter import IterableWrapper

from iotrace.agent.dataloader.held import fed_by, sampler_of, shuffle_of, tokenizer_of, torch_sampler_of

SHARED: queue.Queue[int] = queue.Queue()


class Fed:
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield self.source.get()


class Piped(Fed):
    def __iter__(self) -> Iterator[Any]:
        yield self.source.recv()


class Shared:
    def __iter__(self) -> Iterator[Any]:
        yield SHARED.get()


class Logs(Fed):
    """It only puts into its queue."""

    def __iter__(self) -> Iterator[Any]:
        self.source.put(1)
        yield 1


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: dict[str, int] = {}

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            return self.kept.get(str(index))


class Replay:
    def __init__(self) -> None:
        self.ended = threading.Event()

    def feed(self, *_: Any) -> None:
        self.ended.wait()


def feed(replay: Replay) -> None:
    replay.ended.wait()


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Fed(queue.Queue()), "the queue source"),
        (Fed(queue.SimpleQueue()), "the queue source"),
        (Fed(multiprocessing.get_context("spawn").Queue()), "the queue source"),
        (Piped(multiprocessing.Pipe()[0]), "the pipe source"),
        (Shared(), "the queue SHARED"),
        (Logs(queue.Queue()), None),
        (Fed({"get": 1}), None),
        (Locked(), None),
        ([1, 2], None),
    ],
)
def test_a_queue_or_pipe_that_the_dataset_takes_from_feeds_it(dataset: Any, said: str | None) -> None:
    assert fed_by(dataset) == said


def test_a_thread_that_is_given_the_dataset_feeds_it_while_it_runs() -> None:
    replay, other = Replay(), Replay()
    thread = threading.Thread(target=replay.feed)
    thread.start()
    given = threading.Thread(target=feed, args=(other,))
    given.start()
    try:
        assert fed_by(replay) == "the thread of Replay.feed"
        assert fed_by(other) == "the thread of feed"
        assert fed_by(Replay()) is None
    finally:
        for each in (replay, other):
            each.ended.set()
        thread.join()
        given.join()
    assert fed_by(replay) is None


def test_a_dataset_that_fails_when_looked_at_is_left_alone() -> None:
    class Odd:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    assert fed_by(Odd()) is None
    assert tokenizer_of(Odd()) is None


Tokenizer = type("Tokenizer", (), {"__module__": "tokenizers"})
TOKENIZER: Any = Tokenizer()


def encode(batch: list[str]) -> Any:
    return [TOKENIZER.encode(text) for text in batch]


def padded(batch: list[Any]) -> Any:
    return TOKENIZER.pad(batch)


def given(tokenizer: Any, batch: list[str]) -> Any:
    return [tokenizer(text) for text in batch]


class Collate:
    def __init__(self) -> None:
        self.tokenizer = TOKENIZER

    def __call__(self, batch: list[str]) -> Any:
        return self.tokenizer(batch)

    def put(self, batch: list[str]) -> Any:
        return self.tokenizer(batch)


def closed(tokenizer: Any) -> Any:
    def collate(batch: list[str]) -> Any:
        return [tokenizer.encode(text) for text in batch]

    return collate


@pytest.mark.parametrize(
    "collate", [encode, partial(given, TOKENIZER), Collate(), Collate().put, closed(TOKENIZER)]
)
def test_a_collate_function_that_names_a_tokenizer_is_found(collate: Any) -> None:
    assert tokenizer_of(collate) == "tokenizers.Tokenizer"


@pytest.mark.parametrize("collate", [padded, list, partial(given, None), feed, None, closed(None)])
def test_one_that_pads_or_uses_none_is_not(collate: Any) -> None:
    assert tokenizer_of(collate) is None


def test_the_sampler_of_the_program_is_named() -> None:
    own, torchs = (
        type("Buckets", (), {}),
        type("RandomSampler", (), {"__module__": "torch.utils.data.sampler"}),
    )
    for batch_sampler, sampler, name in (
        (own(), torchs(), "Buckets"),
        (torchs(), own(), "Buckets"),
        (torchs(), torchs(), None),
        (None, torchs(), None),
    ):
        assert sampler_of(SimpleNamespace(batch_sampler=batch_sampler, sampler=sampler)) == name
    assert sampler_of(object()) is None


def test_torchs_own_sampler_is_named_with_what_it_replaces() -> None:
    module = {"__module__": "torch.utils.data.sampler"}
    weighted = type("WeightedRandomSampler", (), {**module, "replacement": False})()
    in_order, own = type("SequentialSampler", (), module)(), type("Buckets", (), {"replacement": False})()
    for sampler, name in (
        (weighted, "WeightedRandomSampler(replacement=False)"),
        (in_order, "SequentialSampler()"),
        (own, None),
        (None, None),
    ):
        assert torch_sampler_of(SimpleNamespace(sampler=sampler)) == name
    assert torch_sampler_of(object()) is None


def test_the_buffer_that_shuffles_samples_is_written_as_a_program_does() -> None:
    """What shuffles the names of shards, before they are opened, holds no samples back."""
    shards = webdataset.WebDataset(["a.tar"] * 64, shardshuffle=64)
    assert shuffle_of(shards) is None
    assert shuffle_of(shards.shuffle(450, initial=450).batched(4)) == "shuffle(450, initial=450)"
    unset = webdataset.WebDataset(["a.tar"], shardshuffle=False)
    assert shuffle_of(unset.shuffle(2000)) == "shuffle(2000, initial=100)"
    unset = webdataset.WebDataset(["a.tar"], shardshuffle=False)
    assert shuffle_of(unset.shuffle(2000, initial=8)) is None  # it begins to give after eight
    pipe = IterableWrapper(range(9))
    assert shuffle_of(pipe.map(str)) is None
    assert shuffle_of(pipe.shuffle(buffer_size=77).map(str)) == "shuffle(buffer_size=77)"
    assert shuffle_of(object()) is None
