"""Causes of a device's idle time beside launches and copies of batches: a rule for each part of the account.

What comes once, as the time before the first kernel, gains nothing in each step: no gain is told of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.device.modules import short_frame
from iotrace.analysis.rules.device import finding_of, idle_part, place_of
from iotrace.analysis.rules.facts.device import DeviceFacts, Spent
from iotrace.analysis.rules.model import THE_DEVICE, Finding, fires, rule, silent
from iotrace.units import counted, milliseconds, percent

_WARM_UP = "trace later steps: torch.profiler.schedule(wait=1, warmup=2, active=3)"


@rule("IO608", "late-first-kernel", "device", turn=THE_DEVICE, saves_wait=False)
@fires(
    {"parts": [idle_part("before_first_kernel", 3000.0, where="infer.py(9): preprocess")]},
    {"parts": [idle_part("before_first_kernel", 3000.0, call="cudaFree")]},
)
@silent(
    {"parts": [idle_part("before_first_kernel", 500.0, where="infer.py(9): preprocess")]},
    {"parts": [idle_part("launch_delay", 3000.0)]},
)
def late_first_kernel(facts: DeviceFacts, *, least: float = 0.2) -> Iterator[Finding]:
    """The host works for long before it launches the first kernel: the device idles while inputs are made.

    Where a call of the runtime takes most of it (the device is set up), it comes once: no input is late.

    Remedy: prepare inputs ahead, in workers of a DataLoader or a thread, while the device computes.
    """
    part = facts.idle("before_first_kernel")
    if facts.is_worth(part.us, least):
        lasted = milliseconds(part.us / 1e3)
        text = f"the device does nothing for {lasted} before its first kernel{place_of(part)}"
        named = part.where.rpartition(": ")[2] if part.where else "what comes before it"
        ahead = f"do {named} ahead, in DataLoader workers or a thread, while the device computes"
        yield finding_of(facts, text, _WARM_UP if part.call else ahead, part.us, gains=False)


@rule("IO609", "blocking-copies", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"parts": [idle_part("blocking_copy", 600.0, call="hipMemcpyWithStream")]})
@silent({"parts": [idle_part("blocking_copy", 100.0)]}, {"parts": [idle_part("synchronisation", 600.0)]})
def blocking_copies(facts: DeviceFacts, *, least: float = 0.05) -> Iterator[Finding]:
    """Copies hold the host up until they are done, and the device then has nothing to do.

    A copy to pageable memory does, whatever it is called with: `cudaMemcpyAsync` returns when it is done.

    Remedy: copy to and from pinned memory with `non_blocking=True`, and read a result a step later.
    """
    part = facts.idle("blocking_copy")
    if facts.is_worth(part.us, least):
        text = f"copies block the host, and the device idles {counted(part.gaps, 'time')}{place_of(part)}"
        remedy = "pinned memory and non_blocking=True for these copies; read results a step later"
        yield finding_of(facts, text, remedy, part.us, gaps=part.gaps)


@rule("IO610", "gaps-in-graphs", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"parts": [idle_part("graph_replay", 2000.0)]})
@silent({"parts": [idle_part("graph_replay", 500.0)]}, {"parts": [idle_part("kernel_gap", 2000.0)]})
def gaps_in_graphs(facts: DeviceFacts, *, least: float = 0.1) -> Iterator[Finding]:
    """The device idles between kernels of a CUDA graph that was launched in time.

    The host is not late. Traces of torch.profiler do not show what else the graph holds (functions on the
    host, waits for other streams).

    Remedy: look at the graph's nodes, and take out what is no kernel.
    """
    part = facts.idle("graph_replay")
    if facts.is_worth(part.us, least):
        text = (
            f"the device idles in {counted(part.gaps, 'gap')} within CUDA graphs that were launched in time"
        )
        remedy = "Nsight Systems shows what else the graph holds: host functions, waits"
        yield finding_of(facts, text, remedy, part.us, gains=False, gaps=part.gaps)


@rule("IO611", "slow-launch-calls", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"parts": [idle_part("launch_call", 2000.0, call="hipLaunchKernel")]})
@silent({"parts": [idle_part("launch_call", 500.0)]}, {"parts": [idle_part("launch_gap", 2000.0)]})
def slow_launch_calls(facts: DeviceFacts, *, least: float = 0.1) -> Iterator[Finding]:
    """Single launches take the host longer than 0.2 ms: kernels are loaded or compiled at their first use.

    Remedy: trace steps after the first ones; if they stay slow, load kernels at the start.
    """
    part = facts.idle("launch_call")
    if facts.is_worth(part.us, least):
        text = f"{counted(part.gaps, 'launch', 'launches')} took the host {milliseconds(part.us / 1e3)}"
        yield finding_of(facts, f"{text}{place_of(part)}", _WARM_UP, part.us, gains=False, launches=part.gaps)


@rule("IO612", "host-between-kernels", "device", turn=THE_DEVICE, saves_wait=False)
@fires(
    {"parts": [idle_part("host", 2000.0)]},
    {"parts": [idle_part("host", 2000.0, where="train.py(41): augment")]},
    {"parts": [idle_part("host", 2000.0, where="aten::sum", first_use_us=1900.0)]},
)
@silent({"parts": [idle_part("host", 500.0)]}, {"parts": [idle_part("launch_gap", 2000.0)]})
def host_between_kernels(facts: DeviceFacts, *, least: float = 0.1) -> Iterator[Finding]:
    """Between two kernels the host does something else for more than 0.2 ms: more than a launch costs.

    If nearly all of it comes before kernels that run for the first time in the trace, it may be the cost of
    their first use (loading, compiling, choosing an algorithm). Later steps do not pay that.

    Remedy: move it to a thread or a step ahead; record stacks where its frames are not known.
    """
    part = facts.idle("host")
    if facts.is_worth(part.us, least):
        text = f"the host does other work in {counted(part.gaps, 'gap')} between kernels{place_of(part)}"
        remedy = "record with_stack=True: frames name what the host does between kernels"
        if facts.has_stacks or part.where:
            named = short_frame(part.where) if part.where else "the step"
            remedy = f"take work of the host out of {named}: --view gaps names what comes after each gap"
        if part.is_first_use:
            text, remedy = f"{text}, before the first use of a kernel each time", _WARM_UP
        gains = bool(part.where) and not part.is_first_use
        yield finding_of(facts, text, remedy, part.us, gains=gains, gaps=part.gaps)


@rule("IO613", "waits-between-streams", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"parts": [idle_part("stream_wait", 2000.0)]})
@silent({"parts": [idle_part("stream_wait", 200.0)]}, {"parts": [idle_part("unknown", 2000.0)]})
def waits_between_streams(facts: DeviceFacts, *, least: float = 0.03) -> Iterator[Finding]:
    """The device idles before kernels whose stream was told to wait for another one.

    Remedy: make work on streams depend on less; `--view stream-waits` names what waited for what.
    """
    part = facts.idle("stream_wait")
    if facts.is_worth(part.us, least):
        text = f"the device idles {counted(part.gaps, 'time')} while its streams wait for each other"
        remedy = "let streams wait for less: --view stream-waits names what waited for what"
        yield finding_of(facts, text, remedy, part.us, gains=False, gaps=part.gaps)


@rule("IO614", "short-gaps", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"parts": [idle_part("kernel_gap", 2000.0)]})
@silent({"parts": [idle_part("kernel_gap", 300.0)]}, {"parts": [idle_part("launch_gap", 2000.0)]})
def short_gaps(facts: DeviceFacts, *, least: float = 0.05) -> Iterator[Finding]:
    """Kernels were launched in time, and the gaps between them, which the device needs, add up.

    Remedy: fewer, longer kernels: `torch.compile` fuses them, larger batches lengthen them.
    """
    part = facts.idle("kernel_gap")
    if facts.is_worth(part.us, least):
        text = f"{counted(part.gaps, 'gap')} between kernels that were launched in time add up"
        yield finding_of(
            facts, text, "fewer, longer kernels: torch.compile, or larger batches", part.us, gaps=part.gaps
        )


@rule("IO615", "late-start", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"parts": [idle_part("launch_delay", 3000.0)]})
@silent({"parts": [idle_part("launch_delay", 500.0)]}, {"parts": [idle_part("unknown", 3000.0)]})
def late_start(facts: DeviceFacts, *, least: float = 0.2) -> Iterator[Finding]:
    """The first kernel began long after its launch: the trace does not say what the device did until then.

    It may have worked on what was launched before the trace, or its clock may be off. No idle time is proven.

    Remedy: let the device come to rest before the profiler starts.
    """
    part = facts.idle("launch_delay")
    if facts.is_worth(part.us, least):
        text = f"the first kernel began {milliseconds(part.us / 1e3)} after its launch"
        remedy = "call torch.cuda.synchronize() before the profiler starts: earlier work may have filled that"
        yield finding_of(facts, text, remedy, part.us, gains=False)


@rule("IO616", "host-after-last-kernel", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"parts": [idle_part("after_last_kernel", 2000.0, where="infer.py(50): postprocess")]})
@silent(
    {"parts": [idle_part("after_last_kernel", 200.0, where="infer.py(50): postprocess")]},
    {"parts": [idle_part("after_last_kernel", 2000.0)]},
)
def host_after_last_kernel(facts: DeviceFacts, *, least: float = 0.03) -> Iterator[Finding]:
    """After the last kernel of a step the host goes on working: it processes outputs while the device idles.

    If no frame or operator holds most of that time, nothing is known of it, and nothing is advised.

    Remedy: process outputs on another thread, while the device computes the next ones.
    """
    part = facts.idle("after_last_kernel")
    if part.where and facts.is_worth(part.us, least):
        text = (
            f"the device does nothing for {milliseconds(part.us / 1e3)} after its last kernel{place_of(part)}"
        )
        remedy = f"do {part.where.rpartition(': ')[2]} on a thread, while the device computes the next step"
        yield finding_of(facts, text, remedy, part.us, gains=False)


@rule("IO617", "exposed-exchanges", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"exposed_others": Spent(1500.0, 8)})
@silent({"exposed_others": Spent(500.0, 8)}, {"exposed": Spent(1500.0, 8)})
def exposed_exchanges(facts: DeviceFacts, *, least: float = 0.1) -> Iterator[Finding]:
    """Exchanges that computing does not hide (all_to_all, sends) take time in which nothing is computed.

    Waits for late ranks are part of it: an exchange cannot end before the last rank has begun it.

    Remedy: make late ranks come earlier; meanwhile compute what needs no exchange.
    """
    spent = facts.exposed_others
    if facts.is_worth(spent.us, least):
        share = percent(spent.us / facts.span_us)
        text = f"exchanges that no computation hides, waits for late ranks included, take {share}"
        remedy = "even the ranks out (--view ranks names the late one), or compute during the exchange"
        yield finding_of(facts, text, remedy, spent.us, calls=spent.calls)


@rule("IO618", "elementwise-kernels", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"busy_us": 9500.0, "elementwise_us": 5000.0})
@silent({"busy_us": 9500.0, "elementwise_us": 2000.0}, {"busy_us": 6000.0, "elementwise_us": 5000.0})
def elementwise_kernels(
    facts: DeviceFacts, *, least_busy: float = 0.85, least_of_busy: float = 0.3
) -> Iterator[Finding]:
    """The device is busy, and elementwise kernels take much of its time: each moves all operands again.

    Remedy: `torch.compile` fuses neighbours into one kernel. What that saves is not known before it is tried.
    """
    if (
        facts.busy_us >= least_busy * facts.span_us > 0
        and facts.elementwise_us >= least_of_busy * facts.busy_us
    ):
        share = percent(facts.elementwise_us / facts.busy_us)
        text = (
            f"elementwise kernels take {share} of the device's time, each of which moves its operands again"
        )
        remedy = "torch.compile(model) fuses elementwise kernels"
        yield finding_of(facts, text, remedy, facts.elementwise_us, gains=False)
