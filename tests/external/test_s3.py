"""Stores on a real S3 server (moto's) on this machine: ranges, uploads, and a sentence for each failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import s3fs
from moto.server import ThreadedMotoServer
from tools.benchmarks.big import write_session

from iotrace import stores
from tests.support.runs import in_process


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
    kept = Path(done.stderr.partition("the result lies in ")[2].partition(": ")[0])
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
