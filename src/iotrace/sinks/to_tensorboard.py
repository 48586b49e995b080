"""TensorBoard: a file of events with scalars, and each table as text; its files lie next to it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from iotrace.sinks.content import PREFIX, Cell, Content, Grid

EVENTS = "tensorboard"  # a directory
_MOST_ROWS = 200  # of a text: the CSV next to it has all


def send(content: Content, directory: Path) -> str:
    """Write the events of `content` below `directory`, in place of earlier ones; returns how to look."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    events = directory / EVENTS
    shutil.rmtree(events, ignore_errors=True)
    writer = EventFileWriter(str(events))
    now = time.time()
    began = now if content.started_ns is None else content.started_ns / 1e9

    def scalar(name: str, value: float, step: int, at: float) -> None:
        summary = Summary(value=[Summary.Value(tag=f"{PREFIX}/{name}", simple_value=value)])
        writer.add_event(Event(wall_time=at, step=step, summary=summary))

    def text(name: str, markdown: str) -> None:
        writer.add_event(Event(wall_time=now, summary=text_pb(f"{PREFIX}/{name}/text_summary", markdown)))

    for name, value in content.metrics.items():
        scalar(name, value, 0, now)
    for name, points in content.series.items():
        for point in points:
            scalar(name, point.value, point.step, began + (point.seconds or 0))
    text("about", _markdown(Grid(["what", "text"], [[*each] for each in content.labels.items()])))
    for name, grid in content.tables.items():
        text(f"tables/{name}", _markdown(grid))
    writer.close()
    return f"tensorboard --logdir {events}"


def _markdown(grid: Grid) -> str:
    lines: list[list[Cell]] = [[*grid.columns], ["---" for _ in grid.columns], *grid.rows[:_MOST_ROWS]]
    return "\n".join(
        "| " + " | ".join("?" if cell is None else _cell(cell) for cell in line) + " |" for line in lines
    )


def _cell(cell: object) -> str:
    text = f"{cell:.6g}" if isinstance(cell, float) else str(cell)
    return text.replace("|", "\\|").replace("\n", " ")
