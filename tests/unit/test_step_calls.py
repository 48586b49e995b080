"""Which lines of a loop feed a call that trains, what is recorded of it, and when that is a wait."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest

from iotrace.agent import patching, step_calls, step_functions
from iotrace.agent.loop_feeds import Feeds, feeds_of
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.sampling import Sampler
from iotrace.analysis.loop.turns import turns_of
from iotrace.session.names import TURN_ROW
from iotrace.sources.records import Identity, LoopStacks, StepCall
from iotrace.sources.session import Rank
from tests.support.rows import process_of

MS = 1_000_000

SOURCE = """
for values, labels in read(batches()):
    model.partial_fit(values, labels, classes=classes)
for epoch in range(3):
    for step in tqdm(range(n)):
        values = numpy.load(f"{step}.npy")
        more = scale(values)
        model.partial_fit(more, y)
        print(model.score(more, y))
def train(x):
    model.partial_fit(x)
while True:
    batch = next(source)
    train(batch)
for step in range(4):
    model.partial_fit(numpy.load(step), y)
for part in split(values := next(source)):
    model.partial_fit(part)
for step in range(4):
    model.partial_fit(x, y)
model.partial_fit(numpy.load(0))
"""


@pytest.mark.parametrize(
    ("line", "called", "found"),
    [
        (3, "partial_fit", Feeds("read(batches())", [2])),
        (8, "partial_fit", Feeds("numpy.load(f'{step}.npy')", [6])),  # what is made of it is the loop's work
        (11, "partial_fit", None),
        (14, "train", Feeds("next(source)", [13])),
        (16, "partial_fit", Feeds("numpy.load(step)", [16])),
        (20, "partial_fit", Feeds("", [])),
        (21, "partial_fit", None),
    ],
)
def test_lines_that_make_data_feed_a_call(line: int, called: str, found: Feeds | None) -> None:
    assert feeds_of(SOURCE, line, called) == found


class Model:
    def partial_fit(self, values: Any) -> Any:
        return values


@pytest.fixture
def recorder(tmp_path: Any) -> Any:
    module = ModuleType(__name__)
    vars(module)["Model"] = Model
    found = Recorder(str(tmp_path))
    step_calls.hook_calls(module, found, __name__)
    yield found
    found.pause()
    patching.undo_all()


def test_a_call_and_its_loop_are_recorded(recorder: Any) -> None:
    model = Model()
    for value in range(5):
        assert model.partial_fit(value) == value
    turns = [each for each in recorder.records if type(each) is tuple and each[0] == TURN_ROW]
    (about,) = [each for each in recorder.records if type(each) is dict and each["type"] == "step_call"]
    assert [turn[1] for turn in turns] == [about["site"]] * 5
    assert about["called"] == "Model.partial_fit"
    assert about["feeds"] == []  # numbers are no data
    assert about["file"] == __file__


def test_what_a_thread_calls_is_no_turn(recorder: Any) -> None:
    from threading import Thread

    thread = Thread(target=Model().partial_fit, args=(1,))
    thread.start()
    thread.join()
    assert recorder.records == []


class PjitFunction:
    """As JAX's: written in C there."""

    def __init__(self, function: Any) -> None:
        self.function, self.__name__ = function, function.__name__

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __reduce__(self) -> Any:
        return len, ("pickled",)


class ArrayImpl(float):
    def item(self) -> float:
        return float(self)


def of_jax(recorder: Any) -> Any:
    """A library that compiles functions and takes gradients, hooked."""
    library = ModuleType("jax")
    vars(library).update(
        jit=lambda function=None, **_: PjitFunction(function) if function else PjitFunction,
        vjp=lambda: None,
        block_until_ready=lambda value: value,
        apply_updates=lambda value: value,
    )
    step_functions.hook_jax(library, recorder)
    step_functions.hook_optax(library, recorder)
    return library


def kinds_of(recorder: Any) -> list[tuple[str, str]]:
    return [
        (each["called"], each["kind"]) for each in recorder.records if type(each) is dict and "kind" in each
    ]


def test_a_compiled_function_trains_if_gradients_are_taken_in_it(recorder: Any) -> None:
    jax = of_jax(recorder)

    def train(value: int) -> int:
        jax.vjp()
        return evaluate(value)  # a part of it

    evaluate, update = jax.jit(lambda value: value), jax.jit(inline=True)(train)
    for value in range(3):
        assert jax.block_until_ready(update(value)) == value
        evaluate(value)
    assert kinds_of(recorder) == [
        ("train", "trains"),
        ("block_until_ready", "awaits"),
        ("a compiled function", "computes"),
    ]
    assert sum(type(each) is tuple and each[0] == TURN_ROW for each in recorder.records) == 9


def test_where_gradients_are_taken_elsewhere_a_compiled_function_is_no_turn(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_functions, "elsewhere", False)
    jax = of_jax(recorder)
    jax.apply_updates(1)
    evaluate = jax.jit(float)
    evaluate(1)
    assert kinds_of(recorder) == [("float", "awaits")]


class Startup:
    """Samples of a start: a library of the program had imported torch."""

    over, interval_s = False, 1.0
    sampler = Sampler()

    def sample(self, *_: Any, **__: Any) -> None: ...

    def record(self) -> dict[str, Any]:
        return {"type": "startup_stacks"}


@pytest.mark.parametrize("trains", [True, False])
def test_a_start_ends_where_a_loop_trains_without_torch(recorder: Any, *, trains: bool) -> None:
    jax = of_jax(recorder)
    recorder.startup = Startup()
    update = jax.jit(lambda _: jax.vjp() if trains else None)
    for value in (open(__file__).close() for _ in range(3)):
        update(value)
    ended = [each for each in recorder.records if type(each) is dict and each["type"] == "startup_stacks"]
    assert (len(ended), recorder.startup is None) == ((1, True) if trains else (0, False))
    if trains:
        assert recorder.loop_stacks.trains_in(sys._getframe().f_code)


def test_a_start_ends_where_gradients_are_taken_outside_of_compiled_functions(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_functions, "elsewhere", False)
    jax = of_jax(recorder)
    recorder.startup = Startup()
    jax.vjp()
    assert recorder.startup is None
    assert recorder.loop_stacks is not None


def test_a_compiled_function_stays_what_it_was(recorder: Any) -> None:
    import pickle

    jax = of_jax(recorder)

    class Trainer:
        @jax.jit
        def step(self, value: int) -> Any:
            return self, value

    trainer = Trainer()
    assert trainer.step(3) == (trainer, 3)
    assert Trainer.step.__name__ == "step"
    assert Trainer.step.function is not None
    assert pickle.dumps(Trainer.step) == pickle.dumps(Trainer.step._of)


class Turn(msgspec.Struct, tag="turn"):
    site: int
    tid: int
    start_ns: int
    end_ns: int


def turns(feeds: list[int], lines: list[int], kind: str = "trains") -> tuple[list[Any], str]:
    """Ten calls of 2 ms, 8 ms apart, sampled each ms; between them in one of `lines` after the other."""
    about = StepCall(0, "Model.partial_fit", "train.py", 3, 1, feeds, "read()", 0, kind)
    calls = [Turn(0, 1, 10 * MS * turn, (10 * turn + 2) * MS) for turn in range(10)]
    at = range(95)
    numbers = [len(lines) if time % 10 < 2 else time % len(lines) for time in at]
    stacks = [[(0, line)] for line in (*lines, 3)]
    times = [time * MS + MS // 2 for time in at]
    samples = LoopStacks(1, times, numbers, [(0, 3)], stacks, [("train.py", "<module>", 1)])
    identity = Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1))
    lines_told: list[Any] = [about, *calls, samples]
    return turns_of(Rank(0, None, 0, process_of(identity, lines_told), []))


def test_what_lies_between_calls_is_a_wait_where_it_makes_their_data() -> None:
    (source,), why = turns([2], [2])
    assert not why
    assert source.deliveries.wait_ns.tolist() == [0, *[8 * MS] * 9]
    assert source.description.dataset == "read()"


def test_a_loop_that_does_more_between_calls_has_steps_and_no_wait() -> None:
    (source,), why = turns([2], [2, 4])
    assert len(source.deliveries) == 10
    assert "line 4" in why


def test_what_the_line_of_the_call_does_after_it_is_no_wait() -> None:
    (source,), why = turns([2], [2, 3])  # samples between the calls: half of them in the line of the call
    assert not why
    assert source.deliveries.wait_ns.tolist() == [0, *[4 * MS] * 9]
    assert turns([2, 3], [2, 3])[0][0].deliveries.wait_ns.tolist() == [0, *[8 * MS] * 9]


def test_how_much_of_the_loop_is_known_to_feed_it_is_said() -> None:
    assert "make its data take 39 % of the loop, others 39 %, most in line 4" in turns([2], [2, 4])[1]


def test_a_call_that_asks_for_its_batch_itself_has_steps_and_no_wait() -> None:
    (source,), why = turns([], [2], "within")
    assert (len(source.deliveries), source.description.library) == (10, "keras")
    assert "TensorFlow alone sees the wait" in why


def test_steps_of_keras_fit_are_recorded_where_tensorflow_asks(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ["jax"]
    config = ModuleType("keras.src.backend.config")
    config.__dict__["backend"] = lambda: backend[0]
    monkeypatch.setitem(sys.modules, config.__name__, config)
    module: Any = ModuleType("keras.src.callbacks.callback_list")
    around = {f"on_{what}": lambda *_: None for what in ("train_batch_begin", "train_batch_end", "epoch_end")}
    module.CallbackList = type("CallbackList", (), around)
    step_calls.hook_fit(module, recorder)
    called = module.CallbackList()
    for used in ("jax", "tensorflow", "tensorflow"):
        backend[0] = used
        called.on_train_batch_begin(0)
        called.on_train_batch_end(0)
    assert kinds_of(recorder) == [("fit", "within")]
    assert sum(each[0] == TURN_ROW for each in recorder.records if isinstance(each, tuple)) == 2
    # Where the number of batches is not known, the epoch ends in a step that finds none, and has no end.
    for ends_the_epoch in (True, False):
        called.on_train_batch_begin(2)
        if ends_the_epoch:
            called.on_epoch_end(0)
        called.on_train_batch_begin(0)
        called.on_train_batch_end(0)
    assert sum(each[0] == TURN_ROW for each in recorder.records if isinstance(each, tuple)) == 4


def test_a_loop_of_which_no_line_is_known_to_make_data_has_no_wait() -> None:
    assert "no line" in turns([], [2])[1]


def test_calls_behind_each_other_that_train_nothing_evaluate() -> None:
    sites = [
        StepCall(number, called, "train.py", 3, 1, [2], "read()", 0, kind)
        for number, (called, kind) in enumerate(
            [("train", "trains"), ("test", "computes"), ("float", "awaits")]
        )
    ]
    # In each of three epochs: eight steps, each awaited and followed by a call that computes; five tests.
    epoch = [site for _ in range(8) for site in (0, 2, 1)] + [1] * 5
    calls = [Turn(site, 1, at * MS, at * MS + MS // 2) for at, site in enumerate(epoch * 3)]
    identity = Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1))
    found, why = turns_of(Rank(0, None, 0, process_of(identity, [*sites, *calls]), []))
    assert [(len(each.deliveries), each.kind) for each in found] == [(24, "other"), (18, "evaluation")]
    assert found[0].deliveries.wait_ns.tolist()[1:] == [MS // 2] * 23
    assert len(found[1].passes) == 3
    assert "too short" in why


def test_calls_that_come_too_fast_are_no_turns() -> None:
    about = StepCall(0, "act", "play.py", 3, 1, [2], "play()", 0, "fast")
    identity = Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1))
    told: list[Any] = [about, *(Turn(0, 1, at, at) for at in range(5))]
    found, why = turns_of(Rank(0, None, 0, process_of(identity, told), []))
    assert not found
    assert "too fast" in why
