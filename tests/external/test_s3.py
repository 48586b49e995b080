"""Stores on a real S3 server (moto's) on this machine: ranges, uploads, and a sentence for each failure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import s3fs
from botocore.exceptions import ConnectionClosedError
from moto.server import ThreadedMotoServer
from tools.benchmarks.big import write_session

from iotrace import stores
from tests.support.runs import in_process

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ThreadedMotoServer]:
    """A server with an empty bucket; credentials that it takes stand in the environment."""
    found = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    found.start()
    host, port = found.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    boto3.client("s3").create_bucket(Bucket="bucket")
    yield found
    s3fs.S3FileSystem.clear_instance_cache()
    found.stop()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "session"
    write_session(path, 60, loaders=1, workers=2, ranks=2, calls=2)
    return path


@pytest.mark.usefixtures("server")
def test_a_session_in_a_bucket_is_merged_into_the_bucket(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_RANGE_BYTES", 1000)
    client = boto3.client("s3")
    for path in session.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "bucket", f"jobs/session/{path.relative_to(session)}")
    bare = in_process("merge", str(session), "-o", str(tmp_path / "all.pftrace"))
    done = in_process("merge", "s3://bucket/jobs/session", "-o", "s3://bucket/out/all.pftrace")
    assert (bare.returncode, done.returncode) == (0, 0), done.stderr
    assert "iotrace: wrote s3://bucket/out/all.pftrace" in done.stderr
    client.download_file("bucket", "out/all.pftrace", str(tmp_path / "there.pftrace"))
    assert (tmp_path / "there.pftrace").stat().st_size == (tmp_path / "all.pftrace").stat().st_size


@pytest.mark.usefixtures("server")
def test_an_upload_of_several_parts_arrives(tmp_path: Path) -> None:
    content = bytes(range(256)) * (120 << 12)  # 120 MiB: s3fs sends parts of 50
    (tmp_path / "big").write_bytes(content)
    stores.upload(tmp_path / "big", "s3://bucket/big")
    assert boto3.client("s3").head_object(Bucket="bucket", Key="big")["ContentLength"] == len(content)
    (tmp_path / "copy").mkdir()
    assert stores.fetch("s3://bucket/big", tmp_path / "copy").read_bytes() == content


@pytest.mark.usefixtures("server")
def test_an_upload_goes_on_behind_the_parts_that_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that breaks costs its part alone: s3fs sends that again."""
    content = bytes(range(256)) * (120 << 12)
    (tmp_path / "big").write_bytes(content)
    asked: list[str] = []
    wrapper = s3fs.core._error_wrapper

    async def breaking(func: Any, *words: Any, **named: Any) -> Any:
        async def once(*args: Any, **kwargs: Any) -> Any:
            asked.append(func.__name__)
            if asked.count("upload_part") == 2 and func.__name__ == "upload_part":
                raise ConnectionClosedError(endpoint_url="http://here")
            return await func(*args, **kwargs)

        return await wrapper(once, *words, **named)

    monkeypatch.setattr(s3fs.core, "_error_wrapper", breaking)
    stores.upload(tmp_path / "big", "s3://bucket/big")
    assert (asked.count("create_multipart_upload"), asked.count("upload_part")) == (1, 4)
    found = boto3.client("s3").get_object(Bucket="bucket", Key="big")["Body"].read()
    assert found == content


@pytest.mark.usefixtures("server")
def test_a_ranks_trace_in_a_bucket_that_was_cut_or_is_missing(tmp_path: Path) -> None:
    client = boto3.client("s3")
    for rank in (0, 1):
        whole = (DATA / f"gloo_rank{rank}.json.gz").read_bytes()
        client.put_object(Bucket="bucket", Key=f"t/{rank}.json.gz", Body=whole[: len(whole) // (1 + rank)])
    done = in_process("report", "s3://bucket/t/0.json.gz", "s3://bucket/t/1.json.gz", "--json")
    assert done.returncode == 0, done.stderr
    assert "part of 1.json.gz" in [item["what"] for item in json.loads(done.stdout)["not_captured"]]
    out = str(tmp_path / "m.json")
    assert in_process("merge", "s3://bucket/t/*.json.gz", "-o", out).returncode == 3
    gone = in_process("report", "s3://bucket/t/0.json.gz", "s3://bucket/t/2.json.gz")
    assert gone.returncode == 1
    assert "s3://bucket/t/2.json.gz" in gone.stderr


@pytest.mark.usefixtures("server")
def test_a_bucket_that_is_not_there() -> None:
    done = in_process("report", "s3://nowhere/session")
    assert done.returncode == 1
    assert "s3://nowhere/session" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("server")
def test_an_upload_to_a_bucket_that_is_not_there_keeps_the_result(session: Path) -> None:
    done = in_process("merge", str(session), "-o", "s3://nowhere/all.pftrace")
    assert done.returncode == 1
    assert "s3://nowhere/all.pftrace cannot be written" in done.stderr
    kept = Path(done.stderr.partition("the result is in ")[2].partition(": ")[0])
    assert kept.stat().st_size > 0
    kept.unlink()


@pytest.mark.usefixtures("server")
def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    done = in_process("report", "s3://bucket/session")
    assert done.returncode == 1
    assert "no credentials were found" in done.stderr
    assert "AWS_PROFILE" in done.stderr


def test_a_server_that_is_gone(server: ThreadedMotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    server.stop()
    done = in_process("report", "s3://bucket/session")
    assert done.returncode == 1
    assert "s3://bucket/session cannot be read" in done.stderr
