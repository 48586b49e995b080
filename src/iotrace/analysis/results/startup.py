"""From the launch to the first step: the parts of that time, imports by package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from iotrace.analysis.results.base import ReportPart, figure


class StartupPart(ReportPart, frozen=True, kw_only=True):
    """A part of the time from launch to the first step's end."""

    name: Annotated[str, figure("what it was", said="part")]
    at_seconds: Annotated[float, figure("after the launch, where it begins", said="from s")]
    seconds: Annotated[float, figure("its length; parts do not overlap: each instant belongs to the innermost", said="s")]
    sampled: Annotated[bool, figure("whether the main thread's stack was looked at now and then")] = False


class ImportedPackage(ReportPart, frozen=True, kw_only=True):
    """Imports of the modules of one package."""

    package: Annotated[str, figure("its name", said="package")]
    at_seconds: Annotated[float, figure("after the launch, where its import begins")]
    seconds: Annotated[float, figure("of its modules, without those of others that these import", said="s")]
    cpu_seconds: Annotated[float, figure("its thread was on a CPU", said="CPU s")]
    modules: Annotated[int, figure("what was looked for, found or not", said="modules")]
    directory: Annotated[str | None, figure("where it lies", null="it has no files", said="in", absent="-")] = None
    mount: Annotated[str | None, figure("its file system's type and point", null="it has no files, or unknown")] = None


class ImportMount(ReportPart, frozen=True, kw_only=True):
    """The packages of `imports` that lie on one file system."""

    mount: Annotated[
        str | None, figure("the file system's type and point", null="unknown", said="file system", absent="unknown, or none: built in, not found")
    ] = None
    seconds: Annotated[float, figure("of the imports from it", said="s")]
    cpu_seconds: Annotated[float, figure("their thread was on a CPU", said="CPU s")]
    modules: Annotated[int, figure("of them", said="modules")]
    packages: Annotated[int, figure("of them", said="packages")]


class Startup(ReportPart, frozen=True, kw_only=True):
    """From the launch to the first step."""

    seconds: Annotated[float, figure("from the launch of the command to the loop's first request for a batch")]
    first_step_seconds: Annotated[float | None, figure("from the launch to the end of the first step")] = None
    named_fraction: Annotated[float | None, figure("the share of it that parts name")] = None
    parts: Annotated[Sequence[StartupPart], figure("what that time was made of; they sum to it, what has no name is the last one")] = ()
    imports: Annotated[Sequence[ImportedPackage], figure("by package")] = ()
    mounts: Annotated[Sequence[ImportMount], figure("the same by file system")] = ()
    imports_waiting_seconds: Annotated[float | None, figure("of imports, neither on a CPU nor ready for one: a lower bound", null="without telemetry")] = None
    worker_imports_seconds: Annotated[float | None, figure("imports of the worker that had most, until then")] = None
    pickled_bytes: Annotated[int | None, figure("what the main process pickled for processes that it spawned", null="nothing")] = None
    unknown_why: Annotated[str | None, figure("why there are no parts", null="there are")] = None
