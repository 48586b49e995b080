"""Note which line of the program makes each DataLoader, and the library that does it there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from iotrace.agent.patching import WeakTable, observe
from iotrace.agent.recording.recorder import Recorder

_sites = WeakTable()  # the lines that make loaders, and the library that does it there
_origins = WeakTable()  # by dataset: the line of the program that made a loader of it; "" of several
_BUILDERS = frozenset(("accelerate", "hydra", "lightning", "pytorch_lightning", "transformers"))
_WRAPPERS = ("__init__", "wrapper")  # a library that watches the program's own calls, as Lightning does
_PASSED_OVER = _BUILDERS | {"contextlib", "functools", "iotrace", "torch"}


def site_of(loader: Any) -> tuple[str | None, str | None]:
    """Return the line that made `loader`, and the library called there; None where they are not known."""
    return _sites.get(loader) or (None, None)


def hook_construction(loader_class: Any, recorder: Recorder) -> None:
    """Note which line makes each loader: those of one line are one loader, made anew for each epoch."""

    def made(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
        site, builder = _building_site()
        dataset = args[0].__dict__.get("dataset")
        origin = _origins.get(dataset)
        if builder is None:
            _origins.put(dataset, "" if origin not in (None, site) else site)
        elif origin:  # a library makes the program's loader anew
            site, builder = origin, None
        _sites.put(args[0], (site, builder))

    observe(loader_class, "__init__", recorder, "noting where a loader is made", after=made)


def _building_site() -> tuple[str, str | None]:
    """Return the line of the program that makes a loader, as ``file:line``, and the library called there.

    The library is None where the line calls torch.
    """
    frame, builder = sys._getframe(2), None
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module not in _PASSED_OVER:
            break
        if module in _BUILDERS and frame.f_code.co_name not in _WRAPPERS:
            builder = module
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}", builder
