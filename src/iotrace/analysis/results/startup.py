"""From the launch to the first step: the parts of that time, imports by package."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.results.base import ReportPart


class StartupPart(ReportPart, frozen=True, kw_only=True):
    """A part of the time from launch to the first step's end; it begins `at_seconds` after the launch.

    Parts do not overlap: each instant belongs to the innermost. Of a `sampled` one the main thread's
    stack was looked at now and then.
    """

    name: str
    at_seconds: float
    seconds: float
    sampled: bool = False


class ImportedPackage(ReportPart, frozen=True, kw_only=True):
    """Imports of the modules of one package, without the modules of others that these import.

    `modules` counts what was looked for, found or not; `cpu_seconds`: its thread was on a CPU. `directory` is
    where the package lies, None for one without files; `mount`: its file system's type and point.
    """

    package: str
    at_seconds: float
    seconds: float
    cpu_seconds: float
    modules: int
    directory: str | None = None
    mount: str | None = None


class ImportMount(ReportPart, frozen=True, kw_only=True):
    """The packages of `imports` that lie on one file system, `mount`: its type and point; None: unknown."""

    mount: str | None = None
    seconds: float
    cpu_seconds: float
    modules: int
    packages: int


class Startup(ReportPart, frozen=True, kw_only=True):
    """`seconds`: from the launch of the command to the loop's first request for a batch.

    `parts` sum to `first_step_seconds`, from the launch to the end of the first step; what has no name is the
    last one. `imports_waiting_seconds`: of imports, neither on a CPU nor ready for one; None where unknown.
    `worker_imports_seconds`: imports of the worker that had most, until then. `pickled_bytes`: what the main
    process pickled for processes that it spawned. Without parts `unknown_why` says why.
    """

    seconds: float
    first_step_seconds: float | None = None
    named_fraction: float | None = None
    parts: Sequence[StartupPart] = ()
    imports: Sequence[ImportedPackage] = ()
    mounts: Sequence[ImportMount] = ()
    imports_waiting_seconds: float | None = None
    worker_imports_seconds: float | None = None
    pickled_bytes: int | None = None
    unknown_why: str | None = None
