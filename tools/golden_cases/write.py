"""Run the cases in a checkout and write their results in normal form.

Each case has a directory: `printed.txt` holds its exit code and what it printed, and there is a file for each
that the command made: the events of Chrome JSON as text, native traces as they are. Large ones are
compressed.
"""

from __future__ import annotations

import gc
import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.golden_cases import normal
from tools.golden_cases.cases import Case
from tools.golden_cases.checkout import Checkout, Server
from tools.golden_cases.recording import Recorded

MARKER = ".golden-results"
_LARGE = 1 << 16


def write(
    checkout: Checkout,
    recorded: Recorded,
    chosen: Iterable[Case],
    out: Path,
    jobs: int,
    say: Callable[[str], None],
) -> None:
    """Run the `chosen` cases with `checkout`, `jobs` at a time, and write the results below `out`."""
    cases = list(chosen)
    gc.disable()  # a collection for every part of a trace that is read
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("Results of tools/golden\n")

    def share(first: int) -> None:
        with tempfile.TemporaryDirectory(prefix="golden-") as name, Server(checkout) as server:
            _preload(server, cases, Path(name).resolve())
            for number in range(first, len(cases), jobs):
                say(f"{number + 1} of {len(cases)}: {cases[number].name}")
                _write_case(server, checkout, recorded, cases[number], out, Path(name).resolve())

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(share, range(jobs)))


def _preload(server: Server, cases: list[Case], scratch: Path) -> None:
    """Let the server import what the cases need, as one case of each command and kind of input shows it."""
    kinds = {(case.arguments[:1], case.name.partition("/")[0]): case for case in reversed(cases)}
    for case in kinds.values():
        _prepare(scratch / "work", case)
        server.run(case.arguments, scratch / "work", scratch / "stdout", scratch / "stderr", preload=True)
        shutil.rmtree(scratch / "work")


def _write_case(
    server: Server, checkout: Checkout, recorded: Recorded, case: Case, out: Path, scratch: Path
) -> None:
    work = scratch / "work"
    _prepare(work, case)
    files = scratch / "stdout", scratch / "stderr"
    code = (
        checkout.run(case.arguments, work, *files) if case.fresh else server.run(case.arguments, work, *files)
    )
    masks = normal.Masks({"recorded": recorded.path, "work": work})
    on_error = normal.Masks({"checkout": checkout.path, "recorded": recorded.path, "work": work})
    shown = [masks.paths(" ".join(["$ iotrace", *case.arguments])), f"exit code {code}"]
    for path, own in zip(files, (masks, on_error), strict=True):
        data = path.read_bytes()
        if data and case.printed:
            text = data.decode(errors="backslashreplace")
            timed = case.arguments[:1] in (("merge",), ("sweep",))
            shown += [f"--- {path.name}", own.text(text) if timed else own.paths(text)]
    target = out / case.name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _keep(target / "printed.txt", ("\n".join(shown) + "\n").encode())
    for path in sorted({found for pattern in case.kept for found in work.glob(pattern) if found.is_file()}):
        _keep_file(target, path, path.relative_to(work), masks)
    shutil.rmtree(work)


def _prepare(work: Path, case: Case) -> None:
    """Make the case's working directory, with what is given."""
    work.mkdir()
    for source, name in case.given:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, work / name)
        else:
            shutil.copyfile(source, work / name)


def _keep_file(target: Path, path: Path, relative: Path, masks: normal.Masks) -> None:
    """Keep a file that the command made, in its normal form."""
    name = str(relative).replace("/", ".")
    data = path.read_bytes()
    if ".pftrace" in name:
        _keep(target / name.removesuffix(".gz"), gzip.decompress(data) if name.endswith(".gz") else data)
        return
    if name.endswith(".pfw"):
        data = b"".join(sorted(data.splitlines(keepends=True)))
    try:
        text = normal.events(data)
    except ValueError:
        text = data.decode(errors="backslashreplace")
    text = masks.text(text) if name.endswith("sweep.json") else masks.paths(text)
    _keep(target / f"{name.removesuffix('.gz')}.txt", text.encode())


def _keep(path: Path, data: bytes) -> None:
    if len(data) > _LARGE:
        path = path.with_name(path.name + ".gz")
        data = gzip.compress(data, 1, mtime=0)
    path.write_bytes(data)
