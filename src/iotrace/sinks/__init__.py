"""``--log NAME``: a result goes to a tracker of experiments, too.

What goes there is written to a directory first (`content`), and stays there. A process of its own hands it
over (`delivery` starts it, `send` runs in it): clients start threads and processes, and wait for servers.
A new sink is a row of `SINKS`, and the module that it names, with a function ``send``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple


class Sink(NamedTuple):
    """`module` of this package uses the package `client`, which `distribution` installs."""

    module: str
    client: str
    distribution: str


# The command line reads this table at each start: a module is imported by the process that hands over.
SINKS = {
    "mlflow": Sink("to_mlflow", "mlflow", "mlflow-skinny"),
    "wandb": Sink("to_wandb", "wandb", "wandb"),
    "tensorboard": Sink("to_tensorboard", "tensorboard", "tensorboard"),
}


def why_not(name: str) -> str:
    """Say why nothing can be logged to `name`; empty where it can: it is known, its client installed."""
    sink = SINKS.get(name)
    if sink is None:
        return f"--log knows {', '.join(SINKS)}; not {name!r}"
    if find_spec(sink.client) is None:
        needs = f"--log {name} needs the package {sink.distribution}, which is not installed here"
        return f"{needs}: pip install {sink.distribution}"
    return ""
