"""Weights & Biases: summary, charts, tables and an artifact of a run; WANDB_RUN_ID names an existing one."""

from __future__ import annotations

import os
from pathlib import Path

from iotrace.sinks.content import FILES, PREFIX, Content

_PATIENCE_SECONDS = 30.0


def send(content: Content, directory: Path) -> str:
    """Log `content` and the files in `directory`; returns the run's address, or what sends an offline one."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    settings = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        x_disable_stats=True,  # of this process, which is not the program
        x_disable_meta=True,
        init_timeout=_PATIENCE_SECONDS,
        silent=True,
    )
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PREFIX),
        name=None if os.environ.get("WANDB_RUN_ID") else os.environ.get("WANDB_NAME", content.name),
        dir=os.environ.get("WANDB_DIR", directory),
        resume=os.environ.get("WANDB_RESUME", "allow"),
        job_type=PREFIX,
        config={PREFIX: content.labels},
        settings=settings,
    )
    run.summary.update({f"{PREFIX}/{name}": value for name, value in content.metrics.items()})
    by_step: dict[int, dict[str, float]] = {}
    for name, points in content.series.items():
        run.define_metric(f"{PREFIX}/{name}", step_metric=f"{PREFIX}/step")
        for point in points:
            by_step.setdefault(point.step, {})[f"{PREFIX}/{name}"] = point.value
    for step, values in sorted(by_step.items()):
        run.log({f"{PREFIX}/step": step, **values})
    for name, grid in content.tables.items():
        table = wandb.Table(grid.columns, grid.rows, allow_mixed_types=True)
        run.log({f"{PREFIX}/tables/{name.replace('/', '.')}": table})
    artifact = wandb.Artifact(f"{PREFIX}-{run.id}", PREFIX)
    artifact.add_dir(str(directory / FILES))
    run.log_artifact(artifact)
    run.finish()
    return run.url or f"offline; send it: wandb sync {Path(run.dir).parent}"
