"""Forward, backward and optimizer: which calls are phases, and that the program meets nothing of it."""

from __future__ import annotations

import _thread
import copy
import importlib
import io
import pickle
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from iotrace.agent import patching, training
from iotrace.agent.phases import roots
from iotrace.agent.recording import regions
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.names import (
    BACKWARD as B,
    CLOSURE as C,
    FORWARD as F,
    FORWARD_NO_GRAD as N,
    OPTIMIZER as S,
    SPAN_FIELDS,
)
from tests.support.rows import told
from tests.unit.test_cuda_events import Device

_OPTIMIZER = importlib.import_module("torch.optim.optimizer")
_CALL_IMPL = nn.Module._call_impl
_X = torch.ones(3, 4)
_ATTRIBUTE = "_compiled_call_impl"


@pytest.fixture(autouse=True)
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(str(tmp_path))
    made.directory = str(tmp_path)
    made._stop = object()  # as if the writer ran
    regions.ask_compiler(torch.compiler.is_compiling)
    training.hook_autograd(torch.autograd, made)
    training.hook_optimizers(_OPTIMIZER, made)
    roots.hook_roots(nn.modules.module, made)
    yield made
    regions.ask_compiler(None)
    patching.undo_all()
    assert not list(tmp_path.glob("*.log")), next(tmp_path.glob("*.log")).read_text()
    assert nn.Module._call_impl is _CALL_IMPL
    assert not _OPTIMIZER._global_optimizer_pre_hooks


def phases(recorder: Recorder) -> list[str]:
    """The phases of this thread, in the order in which they ended; all are forgotten."""
    rows = [dict(zip(SPAN_FIELDS, span, strict=True)) for span in recorder.spans]
    recorder.spans.clear()
    texts = {number: text for text, number in recorder._texts.items()}
    return [texts[row["name"]] for row in rows if row["tid"] == threading.get_native_id()]


def found() -> int:
    """Search as long as roots are looked for."""
    assert roots.search is not None
    return roots.search._calls_left


class Net(nn.Module):
    """A model of several layers; `recomputed` layers run again in the backward pass."""

    def __init__(self, recomputed: bool | None = None) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1))
        self.recomputed = recomputed

    def forward(self, x: torch.Tensor, module: int = 0, self_: int = 0) -> Any:
        x = self.first(x)
        if self.recomputed is None:
            return self.rest(x)
        return checkpoint(self.rest, x, use_reentrant=self.recomputed)


class Own(Net):
    """Copies its dictionary as it is."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


def plain() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        net(_X, module=1).sum().backward()
        optimizer.step()


def accumulating() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        net(_X).sum().backward()
    optimizer.step()


def with_a_loss_module() -> None:
    net, loss = Net(), nn.MSELoss()
    loss(net(_X), torch.zeros(3, 1)).backward()


def adversarial() -> None:
    made, judge = Net(), nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (made, judge)]
    judge(made(_X).detach()).sum().backward()
    optimizers[1].step()
    judge(made(_X)).sum().backward()
    optimizers[0].step()


def by_a_closure() -> None:
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=1)

    def closure() -> torch.Tensor:
        loss: torch.Tensor = net(_X).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def evaluating() -> None:
    net = Net()
    with torch.no_grad():
        net(_X)
    with torch.inference_mode():
        net(_X)


def recomputing() -> None:
    for reentrant in (True, False):
        net = Net(reentrant)
        net(_X.clone().requires_grad_()).sum().backward()


def in_a_wrapper() -> None:
    net = Net()
    net(_X)  # a root of its own, before it was wrapped
    nn.DataParallel(net)(_X).sum().backward()


def functionally() -> None:
    net = Net()
    torch.func.functional_call(net, dict(net.named_parameters()), (_X,)).sum().backward()


def backward_in_forward() -> None:
    class Meta(Net):
        def forward(self, x: torch.Tensor, module: int = 0, self_: int = 0) -> Any:
            super().forward(x).sum().backward()
            return super().forward(x)

    Meta()(_X)


def scripted() -> None:
    net = torch.jit.script(Net())
    net(_X).sum().backward()
    net(_X)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (plain, [F, B, S, F, B, S]),
        (accumulating, [F, B, F, B, F, B, S]),
        (with_a_loss_module, [F, F, B]),
        (adversarial, [F, F, B, S, F, F, B, S]),
        (by_a_closure, [F, B, C, S]),
        (evaluating, [N, N]),
        (recomputing, [F, B, F, B]),
        (in_a_wrapper, [F, F, B]),
        (functionally, [F, B]),
        (backward_in_forward, [B, F]),
        (scripted, [F, B, F]),
    ],
)
def test_phases_of_a_program(recorder: Recorder, program: Callable[[], None], expected: list[str]) -> None:
    program()
    assert phases(recorder) == expected
    rounds = [record["what"] for record in told(recorder.records) if record["type"] == "round"]
    assert rounds == [name for name in expected if name in (B, S)]  # no pass within a pass is a round


def test_phases_are_timed_on_the_device(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no device here: what stands in for torch.cuda keeps a clock of its own."""
    device = Device()
    monkeypatch.setitem(sys.modules, "torch.cuda", device)

    class Launching(Net):
        def forward(self, x: torch.Tensor, module: int = 0, self_: int = 0) -> Any:
            device.busy_until_ms += 30  # and the host goes on
            return super().forward(x)

    net = Launching()
    torch.ones(1, requires_grad=True).sum().backward()  # from here on this thread trains
    phases(recorder)
    net(_X).sum().backward()
    recorded = [span[:2] for span in recorder.spans]
    device.now_ms = 100
    for action in recorder.before_close:
        action()
    timed = [record for record in told(recorder.records) if record["type"] == "phase"][1:]
    assert [record["start_ns"] for record in timed] == [start_ns for start_ns, _ in recorded]
    assert [record["device_ns"] / 1e6 for record in timed] == [30, 0]


def test_nothing_is_a_phase_while_a_loader_makes_a_batch(recorder: Recorder) -> None:
    transform = nn.Sequential(nn.ReLU())
    current.thread.depth += 1
    transform(_X)
    current.thread.depth -= 1
    assert phases(recorder) == []
    assert _ATTRIBUTE not in transform.__dict__


def test_a_thread_of_autograds_makes_no_rounds(recorder: Recorder) -> None:
    """On a device its thread works on the pass, and checkpoints call backward there."""

    class Elsewhere(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
            done = _thread.allocate_lock()
            done.acquire()

            def work() -> None:
                torch.ones(1, requires_grad=True).sum().backward()
                done.release()

            _thread.start_new_thread(work, ())
            done.acquire()
            return grad

    Elsewhere.apply(torch.ones(1, requires_grad=True)).sum().backward()
    (own,) = [record["tid"] for record in told(recorder.records) if record["type"] == "round"]
    assert own == threading.get_native_id()


def test_errors_and_tracebacks_are_the_programs(recorder: Recorder) -> None:
    class Wrong(nn.Module):
        def forward(self) -> None:
            raise ValueError("not mine")

    wrong = Wrong()
    texts = []
    for _ in range(2):  # while roots are looked for, and when it is known
        with pytest.raises(ValueError, match="not mine") as caught:
            wrong()
        texts.append([frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:])
    assert texts == [["_wrapped_call_impl", "_call_impl", "forward"]] * 2
    assert phases(recorder) == [F, F]
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(_X).sum().backward()
    with pytest.raises(ZeroDivisionError) as caught_in_closure:
        optimizer.step(lambda: 1 // 0)
    assert not any("iotrace/agent" in each.filename for each in traceback.extract_tb(caught_in_closure.tb))
    optimizer.step()
    with pytest.raises(RuntimeError):
        _X.sum().backward()
    assert phases(recorder) == [F, B, C, S, B]


def test_copies_pickles_and_what_is_saved_hold_nothing_of_it(recorder: Recorder) -> None:
    for made in (Net(), Own()):
        before = set(made.state_dict())
        made(_X)
        assert isinstance(made.__dict__[_ATTRIBUTE], roots._Root)
        file = io.BytesIO()
        torch.save(made, file)
        file.seek(0)
        deep = copy.deepcopy(made)
        for other in (deep, pickle.loads(pickle.dumps(made)), torch.load(file, weights_only=False)):
            assert other.__dict__.get(_ATTRIBUTE) is None
            assert torch.equal(other(_X), made(_X))
        assert set(made.state_dict()) == before
        assert b"iotrace" not in pickle.dumps(made)
        shallow = copy.copy(made)
        shallow.rest = nn.Identity()
        assert shallow(_X).shape == (3, 4)  # the copy is called, not what it was copied from
        replica = made._replicate_for_data_parallel()
        replica.forward = lambda x: "replica"
        assert replica(_X) == "replica"
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 1)))
    traced(_X)
    assert torch.equal(pickle.loads(pickle.dumps(traced))(_X), copy.deepcopy(traced)(_X))


def test_a_model_is_freed_at_once_and_undone_in_place(recorder: Recorder) -> None:
    net, other = Net(), Net()
    net(_X), other(_X)
    gone = weakref.ref(net)
    del net
    assert gone() is None
    patching.undo_all()
    assert _ATTRIBUTE not in other.__dict__
    phases(recorder)
    other(_X)
    assert phases(recorder) == []


def test_the_search_ends_and_begins_anew(recorder: Recorder) -> None:
    net, late = Net(), Net()
    for _ in range(101):
        net(_X)
    assert nn.Module._call_impl is _CALL_IMPL
    phases(recorder)
    loss = late(_X).sum()  # not seen
    assert phases(recorder) == []
    torch.optim.SGD(late.parameters(), 0.1).step()
    loss.backward()  # the module that it is about is not known: look for it
    assert nn.Module._call_impl is not _CALL_IMPL
    late(_X)
    assert phases(recorder) == [S, B, F]
    for _ in range(101):
        net(_X)
    assert nn.Module._call_impl is _CALL_IMPL
    for _ in range(15):  # after one pass
        assert nn.Module._call_impl is _CALL_IMPL
        net(_X).sum().backward()
    assert nn.Module._call_impl is not _CALL_IMPL  # now and then, whatever is known


def test_beside_other_patches_of_the_same_method(recorder: Recorder) -> None:
    other = patching.patch(nn.Module, "_call_impl", lambda original: lambda self, *a: original(self, *a))
    net = Net()
    for _ in range(101):
        net(_X)  # ends under the other patch
    other()
    net(_X).sum().backward()
    assert nn.Module._call_impl is _CALL_IMPL


def test_a_worker_times_no_module(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    net(_X)
    monkeypatch.setattr(training, "_is_worker", False)
    training.enter_worker()
    assert nn.Module._call_impl is _CALL_IMPL
    assert _ATTRIBUTE not in net.__dict__
    training.enter_worker()


def compiled_module(net: Net, compiler: Any) -> Callable[[], torch.Tensor]:
    model, loss = torch.compile(net, backend=compiler), nn.MSELoss()
    return lambda: loss(model(_X), torch.zeros(3, 1))


def compiled_after_a_call(net: Net, compiler: Any) -> Callable[[], torch.Tensor]:
    net(_X)
    return compiled_module(net, compiler)


def compiled_in_place(net: Net, compiler: Any) -> Callable[[], torch.Tensor]:
    net(_X)
    net.compile(backend=compiler)
    return lambda: net(_X).sum()


def compiled_function(net: Net, compiler: Any) -> Callable[[], torch.Tensor]:
    net(_X)
    call: Callable[[], torch.Tensor] = torch.compile(lambda: net(_X).sum(), backend=compiler)
    return call


def compiled_function_of_hooked(net: Net, compiler: Any) -> Callable[[], torch.Tensor]:
    net.register_forward_hook(lambda *_: None)
    net.first.register_forward_pre_hook(lambda *_: None)
    return compiled_function(net, compiler)


def compiled_part(net: Net, compiler: Any) -> Callable[[], torch.Tensor]:
    net.rest = torch.compile(net.rest, backend=compiler)  # type: ignore[assignment]
    return lambda: net(_X).sum()


def trained_compiled(prepare: Any, compiled_step: bool) -> tuple[list[float], int, int, dict[str, int]]:
    """Train a compiled model: its losses, what was compiled, and the graph breaks."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    net, compiler = Net(), torch._dynamo.testing.CompileCounter()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = torch.compile(optimizer.step, backend=compiler) if compiled_step else optimizer.step
    call = prepare(net, compiler)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = call()
        loss.backward()
        step()
        losses.append(loss.item())
    breaks = dict(torch._dynamo.utils.counters["graph_break"])
    return losses, compiler.frame_count, compiler.op_count, breaks


@pytest.mark.parametrize(
    ("prepare", "compiled_step", "expected"),
    [
        (compiled_module, False, [F, F, B, S]),
        pytest.param(compiled_module, True, [F, F, B], marks=pytest.mark.slow),
        (compiled_after_a_call, False, [F, F, B, S]),
        (compiled_in_place, False, [F, B, S]),
        (compiled_function, False, [B, S]),
        (compiled_function_of_hooked, False, [B, S]),
        (compiled_part, False, [F, B, S]),
    ],
)
def test_a_compiled_program_meets_nothing_of_it(
    recorder: Recorder, prepare: Any, compiled_step: bool, expected: list[str]
) -> None:
    importlib.import_module("torch._dynamo.testing")
    roots.hook_compiler(importlib.import_module("torch._dynamo.callback"), recorder)
    traced = trained_compiled(prepare, compiled_step)
    assert phases(recorder)[-len(expected) :] == expected
    patching.undo_all()
    assert trained_compiled(prepare, compiled_step) == traced
    assert phases(recorder) == []


def test_what_is_exported_and_traced_is_the_same(recorder: Recorder) -> None:
    roots.hook_compiler(importlib.import_module("torch._dynamo.callback"), recorder)

    def exported() -> list[str]:
        torch.manual_seed(0)
        net = Net().eval()
        net(_X)
        programs = [torch.export.export(net, (_X,), strict=strict) for strict in (False, True)]
        stacks = [node.meta.get("stack_trace", "") for each in programs for node in each.graph.nodes]
        traced: Any = torch.jit.trace(net, (_X,))
        graph = re.sub(r"___torch_mangle_\d+\.", "", str(traced.inlined_graph))
        return [*(str(each) for each in programs), *stacks, graph, traced.code]

    with_it = exported()
    patching.undo_all()
    assert exported() == with_it
