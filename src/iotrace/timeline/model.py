"""A timeline as data: processes with tracks of slices, counters, flows."""

from __future__ import annotations

from dataclasses import dataclass, field

Args = dict[str, str | int | float | bool | None]
_DECIMALS = 6
TORCH = "torch"  # what each track of torch.profiler's host events is called by first
STARTUP = "start-up"  # what the track is called that holds what the start was made of
CALL = "call"  # the argument that names the function of a slice that is named by its file


def known(**args: str | int | float | bool | None) -> Args:
    """Return the arguments that have a value."""
    return {name: value for name, value in args.items() if value is not None}


def file_label(path: str) -> str:
    """Name a file as a slice does: by its name, by its path within a zarr store; files by their directory."""
    path, of_files, number = path.partition("/ (")
    if of_files:
        return f"{file_label(path)}{of_files}{number}"
    parts = path.rstrip("/").split("/")
    store = next((number for number, part in enumerate(parts) if part.endswith(".zarr")), len(parts) - 1)
    return "/".join(parts[store:])


@dataclass(slots=True, eq=False)
class Slice:
    """Something that lasted: ``[start_ns, end_ns)`` of the session's time. Two slices are never equal."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    args: Args | None = None


@dataclass
class Track:
    """A track of the timeline. Slices that overlap without nesting spread over several lanes of it.

    `tid` is the kernel's id of the thread whose events it shows, None where it shows those of no thread.
    """

    name: str
    slices: list[Slice] = field(default_factory=list)
    tid: int | None = None


@dataclass
class Counter:
    """A value over time: (ns, value) pairs in order. Each holds until the next.

    Values are kept to a millionth of their unit: Perfetto misreads decimals of 20 places and more (0.00019...
    as 0.0025), as its importer's power of ten overflows 64 bits.
    """

    name: str
    points: list[tuple[int, float]]
    unit: str

    def __post_init__(self) -> None:
        self.points = [(time_ns, round(value, _DECIMALS)) for time_ns, value in self.points]


@dataclass
class ProcessTracks:
    """A process of the timeline with its name, as Perfetto shows it."""

    name: str
    labels: str
    tracks: list[Track] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)


@dataclass
class Flow:
    """A flow through slices in the order of time: each stop is a slice and an instant inside it."""

    name: str
    stops: list[tuple[Slice, int]]
    category: str = "batch"


@dataclass
class Timeline:
    """All that the file of one rank shows."""

    base_ns: int  # time 0: Perfetto drops what lies before it
    processes: list[ProcessTracks] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)


def first_ns(timeline: Timeline) -> int:
    """Find the earliest instant that the timeline shows; its `base_ns` where it shows nothing."""
    starts = [
        item.start_ns for process in timeline.processes for track in process.tracks for item in track.slices
    ]
    starts += [
        counter.points[0][0]
        for process in timeline.processes
        for counter in process.counters
        if counter.points
    ]
    return min(starts, default=timeline.base_ns)
