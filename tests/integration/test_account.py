"""The account of a run, of small programs: its parts sum exactly, and what is lost is found where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import run_script

HEAD = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, count=0):
        self.rows = [{"path": f"{index}.jpg", "box": (index, index + 1)} for index in range(count)]
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.ones(4) * index

weight = torch.ones(4, requires_grad=True)

def train(batch, seconds=0.002):
    (batch * weight).sum().backward()
    time.sleep(seconds)
"""

SPAWNS = (
    HEAD
    + """
time.sleep(1)  # what a script does where each spawned worker runs it again
if __name__ == "__main__":
    loader = DataLoader(Rows(100_000), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    for epoch in range(2):
        for batch in loader:
            train(batch)
"""
)

ONE_BATCH_EACH = (
    HEAD
    + """
loader = DataLoader(Rows(), batch_size=4, num_workers=1)
for step in range(12):
    train(next(iter(loader)))
"""
)

VALIDATES = (
    HEAD
    + """
training = DataLoader(Rows(), batch_size=2, num_workers=1, persistent_workers=True)
checking = DataLoader(Rows(), batch_size=4, num_workers=2, persistent_workers=sys.argv[1] == "persistent")
for epoch in range(2):
    for number, batch in enumerate(training):
        train(batch)
        if number % 4 == 3:
            with torch.no_grad():
                for batch in checking:
                    time.sleep(0.001)
"""
)

CURRICULUM = (
    HEAD
    + """
for size in (2, 3, 4):
    for batch in DataLoader(Rows(), batch_size=size, num_workers=2):
        train(batch)
"""
)

KEPT = (
    HEAD
    + """
loader = DataLoader(Rows(), batch_size=1, num_workers=1, persistent_workers=True)
for epoch in range(2):
    for batch in loader:
        train(batch, 0.02)
"""
)

CHOOSES = (
    HEAD
    + """
FILES, how = [f"sample-{number}.txt" for number in range(40)], sys.argv[1]
for file in FILES:
    with open(file, "w") as written:
        written.write("1 " * 8_000)

def length(file):
    with open(file) as opened:
        return sum(int(word) for word in opened.read().split())

class Buckets:
    lengths = None
    def __len__(self):
        return 6
    def __iter__(self):
        if how == "measures" or self.lengths is None:
            self.lengths = [length(file) + number for number, file in enumerate(FILES)] * 15
            if how == "measures":
                for _ in range(14):
                    self.lengths[:40] = [length(file) for file in FILES]
        if how == "computes":
            sum(number * number for number in range(6_000_000))
        for number in range(6):
            yield [4 * number, 4 * number + 1, 4 * number + 2, 4 * number + 3]

loader = DataLoader(Rows(), batch_sampler=Buckets(), num_workers=1, persistent_workers=True)
for epoch in range(6):
    for batch in loader:
        train(batch)
"""
)

REBUILDS = (
    HEAD
    + """
class Listed(Rows):
    def __init__(self):
        self.found = sum(number * number for number in range(6_000_000))

def rebuilt():
    return Listed()

def plotted():
    return sum(number * number for number in range(6_000_000))

rows = Listed()
for epoch in range(6):
    for batch in DataLoader(rows, batch_size=4):
        train(batch)
    if sys.argv[1] == "rebuilds":
        rows = rebuilt()
    elif sys.argv[1] == "plots":
        plotted()
"""
)

OF_ITERATORS = {"IO203", "IO207", "IO208", "IO209"}


def account_of(directory: Path, program: str, *words: str) -> tuple[dict[str, Any], dict[str, int], set[str]]:
    """The report of a program, the parts of its account in ns, and the codes of its recommendations."""
    run = run_script(directory, program, *words)
    assert run.code == 0, run.stderr
    logs = list(run.session.glob("processes/*/agent.log"))
    assert not logs, logs[0].read_text()
    report = run.report()
    account = report["ranks"][0]["account"]
    parts = {part["name"]: part["ns"] for part in account["parts"] if part["ns"] is not None}
    assert sum(parts.values()) == account["whole_ns"]
    assert min(parts.values()) >= 0
    inside = sum(part["ns"] or 0 for part in account["parts"] if part["in_loop"])
    assert inside == account["loop_ns"]
    assert sum(part["share_pct"] or 0 for part in account["parts"]) == pytest.approx(100)
    return report, parts, {item["code"] for item in report["recommendations"]}


def largest_of_loop(report: dict[str, Any]) -> str:
    parts = [part for part in report["ranks"][0]["account"]["parts"] if part["in_loop"] and part["ns"]]
    return str(max(parts, key=lambda part: part["ns"])["name"])


def test_spawned_workers_that_are_started_each_epoch_are_the_loops_largest_part(tmp_path: Path) -> None:
    report, parts, codes = account_of(tmp_path, SPAWNS)
    account = report["ranks"][0]["account"]
    assert largest_of_loop(report) == "iterators"
    assert parts["first start"] > 0
    assert (account["iterators"], account["restarted"], account["workers_started"]) == (1, 1, 1)
    spawned = account["spawned"]
    assert spawned["count"] == 2
    assert spawned["script"].endswith(".py")
    assert spawned["import_ns"] > spawned["needed_ns"] + 900_000_000  # the sleep
    assert spawned["pickled_bytes"] > 2 * 100_000 * 10
    assert spawned["unpickle_ns"] > 0
    assert report["verdict"]["class"] == "input-bound"
    assert "starting workers each epoch" in report["verdict"]["text"]
    assert {"IO203", "IO207"} <= codes


def test_an_iterator_for_each_batch_is_found(tmp_path: Path) -> None:
    report, parts, codes = account_of(tmp_path, ONE_BATCH_EACH)
    account = report["ranks"][0]["account"]
    assert account["iterators"] == account["one_batch_iterators"] == 11
    assert parts["waits"] == 0
    assert parts["iterators"] + parts["first batches"] > parts["training"]
    assert "IO203" in codes
    assert any("keep one iterator" in fix["text"] for fix in report["verdict"]["fixes"])


def test_a_validation_that_starts_its_workers_anew_is_found(tmp_path: Path) -> None:
    report, parts, codes = account_of(tmp_path, VALIDATES, "anew")
    found = {part["name"]: part["times"] for part in report["ranks"][0]["account"]["parts"]}
    assert (found["validation"], found["validation iterators"]) == (6, 5)
    assert parts["validation iterators"] > 0
    assert "IO209" in codes


def test_a_validation_that_keeps_its_workers_is_not_accused(tmp_path: Path) -> None:
    report, parts, codes = account_of(tmp_path, VALIDATES, "persistent")
    assert parts["validation iterators"] == 0
    assert parts["validation"] > 0
    assert not codes & OF_ITERATORS
    assert "starting" not in report["verdict"]["text"]


def test_a_loader_that_is_built_anew_each_epoch_has_no_warm_up_but_its_first(tmp_path: Path) -> None:
    report, parts, _ = account_of(tmp_path, CURRICULUM)
    rank = report["ranks"][0]
    assert [loader["epochs"] for loader in rank["loaders"]] == [3]
    assert rank["steps"]["begun"] == rank["account"]["steps"] == 12 + 8 + 6
    assert rank["steps"]["excluded"]["warmup"] <= 1
    assert rank["account"]["workers_started"] == 4
    assert parts["iterators"] > 0


def test_a_loop_that_keeps_its_workers_is_not_accused(tmp_path: Path) -> None:
    report, parts, codes = account_of(tmp_path, KEPT)
    assert largest_of_loop(report) == "training"
    assert parts["training"] > parts["iterators"]
    assert not codes & OF_ITERATORS
    assert "starting" not in report["verdict"]["text"]


def test_a_sampler_that_measures_files_before_each_epoch_is_named(tmp_path: Path) -> None:
    report, parts, codes = account_of(tmp_path, CHOOSES, "measures")
    assert largest_of_loop(report) == "sampling"
    assert parts["sampling"] > parts["iterators"]
    assert parts["first sampling"] > 0
    assert "IO219" in codes
    work = report["ranks"][0]["loaders"][0]["sampler"]
    assert (work["passes"], work["files"]) == (5, 40)
    assert work["function"].startswith("Buckets.__iter__ (")
    assert "choosing the samples of later epochs" in report["verdict"]["text"]
    assert "it reads 40 files in the main process" in report["verdict"]["why"]
    assert "keep the first epoch's lengths" in report["verdict"]["fixes"][0]["text"]
    assert report["verdict"]["fixes"][0]["speedup"] is not None


def test_a_sampler_that_computes_reads_no_files(tmp_path: Path) -> None:
    report, _, codes = account_of(tmp_path, CHOOSES, "computes")
    assert largest_of_loop(report) == "sampling"
    assert "IO219" in codes
    assert "it reads" not in report["verdict"]["why"]
    assert "draw with arrays" in report["verdict"]["fixes"][0]["text"]


def test_a_sampler_that_kept_what_it_measured_is_not_accused(tmp_path: Path) -> None:
    report, parts, codes = account_of(tmp_path, CHOOSES, "keeps")
    assert parts["sampling"] == 0
    assert report["ranks"][0]["loaders"][0]["sampler"] is None
    assert "IO219" not in codes


@pytest.mark.parametrize(("how", "builds"), [("rebuilds", "Listed"), ("plots", None), ("keeps", "")])
def test_a_dataset_that_is_built_anew_between_epochs_is_a_cost_of_the_loader(
    tmp_path: Path, how: str, builds: str | None
) -> None:
    report, _, codes = account_of(tmp_path, REBUILDS, how)
    found = [code["builds"] for code in report["ranks"][0]["loop_code"] if code["count"]]
    assert found == [builds] if builds != "" else found == []
    text, fixes = report["verdict"]["text"], [fix["text"] for fix in report["verdict"]["fixes"]]
    assert ("building the data anew" in text) == (how == "rebuilds")
    assert any("build Listed once" in fix for fix in fixes) == (how == "rebuilds")
    assert ("IO509" in codes) == (how != "keeps")
