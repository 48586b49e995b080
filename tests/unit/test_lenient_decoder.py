"""Damage is read in steps that grow with its length; what cannot be read is one loss up to the next event."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from iotrace.sources.chrome import lenient_decoder
from iotrace.sources.chrome.batch import Event
from iotrace.sources.chrome.lenient_decoder import objects
from iotrace.sources.chrome.reader import ChromeReader


class Counting:
    """The decoder, and how often and for how many characters it was called."""

    def __init__(self) -> None:
        self.calls = self.characters = 0
        self._decoder = lenient_decoder._decoder

    def raw_decode(self, text: str, at: int = 0) -> tuple[Any, int]:
        self.calls += 1
        self.characters += len(text)  # an error counts the lines before it
        return self._decoder.raw_decode(text, at)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()
    monkeypatch.setattr(lenient_decoder, "_decoder", counting)
    return counting


def event(number: int) -> str:
    args = {"name of the file": "/data/" + "x" * 80, "number": number}
    return json.dumps(
        {"ph": "X", "name": f"e{number}", "pid": 1, "tid": 1, "ts": number, "dur": 1, "args": args}
    )


def jumbled(length: int) -> str:
    """What a damaged gzip stream holds: pieces of events, none whole."""
    chance = random.Random(length)
    text, whole = "", event(7)
    while len(text) < length:
        begin = 0 if chance.random() < 0.5 else chance.randrange(len(whole))
        text += whole[begin : begin + chance.randrange(10, 100)].rstrip("}")
    return text[:length]


@pytest.mark.parametrize("final", [False, True])
def test_steps_grow_with_the_length_of_what_is_damaged(decoder: Counting, final: bool) -> None:
    steps = []
    for length in (100_000, 400_000):
        decoder.calls = decoder.characters = 0
        text = f"{jumbled(length)},{event(1)}]"
        found = list(objects(text, 0, final))
        assert [item.value is None for item in found] == [True, False]
        steps.append((decoder.calls, decoder.characters))
    (few, few_characters), (many, many_characters) = steps
    assert many < 5 * few
    assert many_characters < 5 * few_characters


def test_a_reader_goes_through_what_is_damaged_once(decoder: Counting) -> None:
    text = f'{{"traceEvents":[{event(0)},{jumbled(1_000_000)},{event(1)}]}}'
    reader: ChromeReader[Any] = ChromeReader(scan=None)
    pieces = [text[at : at + (1 << 18)].encode() for at in range(0, len(text), 1 << 18)]
    events: list[Event] = [one for batch in reader.batches(iter(pieces)) for one in batch.events]
    assert [one.name for one in events] == ["e0", "e1"]
    starts = text.count('{"ph"')
    assert decoder.calls < 2 * starts + 100


def test_a_long_value_is_decoded_whole(decoder: Counting) -> None:
    values = [
        {"ph": "X", "name": "x" * 10_000, "args": {"list": list(range(50_000))}},
        {
            "ph": "X",
            "name": "é" * 4_090,
            "ts": 1.5,
            "args": {"t": True, "n": None, "u": "\U0001f600" * 2_000},
        },
        *({"ph": "X", "name": "y" * length, "ts": -1.25e-7, "ok": False} for length in range(4_030, 4_100)),
    ]
    for value in values:
        for ascii_only in (True, False):
            text = json.dumps(value, ensure_ascii=ascii_only)
            (found,) = objects(text, 0, final=True)
            assert json.loads(text) == json.loads(json.dumps(found.value, default=float))
            assert found.end == len(text)
    assert decoder.calls <= 4 * 2 * len(values)  # pieces of 4 KiB, 32 KiB, 256 KiB, 2 MiB


def test_losses_and_events_alternate() -> None:
    text = f'{{"ph":"X","name":[1,{event(1)},17,"x",{event(2)},{{"ph":,{{"ph":,{{"ph":"X"'
    found = [None if item.value is None else item.value["name"] for item in objects(text, 0, final=True)]
    assert found == [None, "e1", None, None, "e2", None]
    cut = list(objects(text, 0, final=False))
    assert [item.value is None for item in cut] == [True, False, True, True, False, True]
    assert text[cut[-1].end :] == '{"ph":"X"'
