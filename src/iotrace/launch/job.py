"""Name the job that this launcher belongs to: the launchers of one job share a session.

``srun iotrace run -- CMD`` starts one launcher per task; each finds the others by the job's name.
"""

from __future__ import annotations

from collections.abc import Mapping

from iotrace.session import names
from iotrace.session.identity import ranks

# Variables that together are the same for every task of one start of a parallel program, and for no other
# start. A batch job's number alone is not enough: a job may start several programs.
_JOBS = (
    ("torchrun", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    ("slurm", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    ("pals", ("PALS_APID",)),  # mpiexec on Aurora and other machines with PBS
    ("openmpi", ("PMIX_NAMESPACE",)),
    ("openmpi", ("OMPI_MCA_ess_base_jobid",)),  # before Open MPI 5
)


def job_of(environment: Mapping[str, str]) -> str:
    """Return the job and step that `environment` names, such as ``slurm-4711.0``; empty: none.

    ``IOTRACE_JOB`` overrides what the scheduler says.
    """
    job = environment.get(names.JOB_VARIABLE, "")
    for scheduler, variables in _JOBS:
        values = [environment.get(variable, "") for variable in variables]
        if not job and all(values):
            job = f"{scheduler}-{'.'.join(values)}"
    return "".join(character if character.isalnum() or character in "._-" else "-" for character in job)


def task_of(environment: Mapping[str, str]) -> str:
    """Return which of the job's tasks this is; empty where nothing says.

    A task seen twice is another run: a second command typed into one interactive step.
    """
    rank = ranks(environment)["rank"]
    if rank is None:
        return ""
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return f"{rank}.{restart}" if restart else str(rank)
