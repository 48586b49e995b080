"""Which job and task a launcher is, and which rank a process: from the variables that launchers set."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from iotrace.launch import session_directory
from iotrace.launch.session_directory import job_name, task_name
from iotrace.launch.traced_run import begin_by_default, describe
from iotrace.session import names
from iotrace.session.identity import ranks
from iotrace.session.manifest import Manifest, Outcome, PosixState, claim, write_document

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "8",
}
OPEN_MPI = {
    "OMPI_MCA_ess_base_jobid": "21233664",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "8",
}
PALS = {"PALS_APID": "9f", "PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PMI_SIZE": "8"}
HYDRA = {"PMI_RANK": "3", "MPI_LOCALRANKID": "1", "PMI_SIZE": "8"}
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize("variables", [SLURM, OPEN_MPI, PALS, HYDRA, TORCHRUN])
def test_every_launcher_tells_rank_local_rank_and_world_size(variables: dict[str, str]) -> None:
    assert ranks(variables) == {"rank": 3, "local_rank": 1, "world_size": 8}


def test_without_a_launcher_nothing_is_told() -> None:
    assert ranks({"HOME": "/root", "RANK": "first"}) == {"rank": None, "local_rank": None, "world_size": None}
    assert (job_name({}), task_name({}), ranks({})["world_size"]) == ("", "", None)


def test_torchrun_inside_slurm_is_the_inner_one() -> None:
    inner = {**SLURM, **TORCHRUN, "RANK": "13", "WORLD_SIZE": "32"}
    assert (ranks(inner)["rank"], ranks(inner)["world_size"]) == (13, 32)


@pytest.mark.parametrize(
    ("variables", "job", "task"),
    [
        (SLURM, "slurm-4711.0", "3"),
        (OPEN_MPI, "openmpi-21233664", "3"),
        ({**OPEN_MPI, "PMIX_NAMESPACE": "prterun-a-7@1"}, "openmpi-prterun-a-7-1", "3"),
        (PALS, "pals-9f", "3"),
        (TORCHRUN, "torchrun-none.127.0.0.1.29500", "3.1"),
        ({**SLURM, "IOTRACE_JOB": "my run"}, "my-run", "3"),
        (HYDRA, "", "3"),
        ({"SLURM_JOB_ID": "4711"}, "", ""),
    ],
)
def test_a_job_is_one_start_of_a_program(variables: dict[str, str], job: str, task: str) -> None:
    assert (job_name(variables), task_name(variables)) == (job, task)


@pytest.mark.parametrize(
    ("task", "ended_s_ago", "joins"),
    [
        ("1.0", None, True),
        ("1.0", 5, True),
        ("1.0", 3600, False),
        ("0.1", 3600, True),
        ("0.0", None, False),
    ],
)
def test_a_session_of_an_earlier_start_is_not_joined(
    tmp_path: Path, task: str, ended_s_ago: int | None, joins: bool
) -> None:
    manifest = Manifest(
        format=1,
        iotrace_version="0",
        argv=["python"],
        cwd="/",
        host="h",
        started_ns=0,
        cpus=1,
        posix=PosixState(on=False),
        job="torchrun-none.localhost.29500",
        task="0.0",
    )
    assert claim(tmp_path, manifest)
    if ended_s_ago is not None:
        ended_ns = time.time_ns() - ended_s_ago * 1_000_000_000
        write_document(tmp_path / names.OUTCOME, Outcome(exit_code=0, ended_ns=ended_ns, duration_ns=1))
    assert session_directory.may_join(tmp_path, manifest.job, task) is joins


def test_a_directory_that_another_task_has_just_made_is_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IOTRACE_JOB", "mine")
    manifest = describe(["true"], PosixState(on=False), [], {}, None)
    (tmp_path / "iotrace-mine").mkdir()
    shown, _ = begin_by_default(manifest)
    assert shown == Path("iotrace-mine")
    (tmp_path / "iotrace-mine-2").mkdir()
    (tmp_path / "iotrace-mine-2" / "notes").touch()  # somebody's own
    (tmp_path / "iotrace-mine" / "manifest.json").write_text("{}")  # of another job
    assert begin_by_default(manifest)[0] == Path("iotrace-mine-3")
