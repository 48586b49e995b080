"""Loaders of other libraries, each with the real one: as bare, batches counted, workers and causes known."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from iotrace.analysis.rank import RankAnalysis
from iotrace.session.names import OVERRIDE_VARIABLE, encode_settings
from iotrace.sources.session import open_session
from tests.support.runs import Run, environment, report_of, run_bare, run_script, run_traced

HEAD = """
import time
import numpy, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Items(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((4,), float(index))

class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, every = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 48, every):
            time.sleep(0.002)
            yield torch.full((4,), float(index))

def load(index):
    time.sleep(0.002)
    return torch.full((4,), float(index))
"""

TAIL = """
def main():
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 1e-9)
    steps, total = 0, 0.0
    for epoch in range(EPOCHS):
        for batch in make():
            batch = torch.as_tensor(batch.x if hasattr(batch, "x") else batch)
            total += float(batch[:, 0].sum())
            (batch * weight).sum().backward()
            optimizer.step()
            steps += 1
    print(steps, total)

if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Case:
    """A library's loader: what makes it, and what is known of it.

    `workers` are those of torch's DataLoader, None where the library has none; `inner` are its batches.
    """

    library: str
    module: str
    make: str
    workers: int | None = None
    dataset: str = "Items"
    steps: int = 24
    inner: int | None = None
    epochs: int = 2


def made_once(call: str, imports: str) -> str:
    """A loader that is made once and iterated in each epoch."""
    return f"""
{imports}
made = []
def make():
    if not made:
        made.append({call})
    return made[0]
"""


ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
"""
NODES = """
import torchdata.nodes as nodes
def graph():
    node = nodes.SamplerWrapper(torch.utils.data.SequentialSampler(range(48)))
    node = nodes.ParallelMapper(node, load, num_workers=2, method="thread")
    return nodes.Prefetcher(nodes.Mapper(nodes.Batcher(node, 4), torch.stack), 2)
"""
WEBDATASET = """
import webdataset
class Samples(Stream):
    def __iter__(self):
        for item in super().__iter__():
            yield (item,)
def joined(samples):
    return torch.stack([sample[0] for sample in samples])
"""
SPDL = """
from spdl.dataloader import DataLoader as Loader
"""
PIPELINE = """
from spdl.pipeline import PipelineBuilder
class Piped:
    def __iter__(self):
        builder = PipelineBuilder().add_source(range(48)).pipe(load, concurrency=2)
        pipeline = builder.aggregate(4).pipe(torch.stack).add_sink(2).build(num_threads=2)
        with pipeline.auto_stop():
            yield from pipeline
"""
GRAIN = """
import grain.python as grain
class Arrays:
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return load(index).numpy()
"""
NODE_LOADER = """
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, SamplerOutput
class Sampler(BaseSampler):
    def sample_from_nodes(self, index, **kwargs):
        time.sleep(0.005)
        none = torch.empty(0, dtype=torch.long)
        return SamplerOutput(index.node, none, none, none, metadata=(index.input_id, index.time))
    def sample_from_edges(self, index, **kwargs):
        raise NotImplementedError
graph = Data(x=torch.arange(48.0)[:, None].repeat(1, 4), edge_index=torch.zeros(2, 0, dtype=torch.long))
"""
ROWS = """
from datasets import Dataset as Rows
class Tensors:
    rows = Rows.from_dict({"x": [[float(index)] * 4 for index in range(48)]}).with_format("torch")
    def __iter__(self):
        for batch in self.rows.iter(batch_size=4):
            yield batch["x"]
"""
DALI = """
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator
def sample(info):
    if info.idx_in_epoch == 48:
        raise StopIteration
    return load(info.idx_in_epoch).numpy()
@pipeline_def(batch_size=4, num_threads=2, device_id=None)
def pipeline():
    return fn.external_source(source=sample, batch=False, dtype=types.FLOAT)
class Batches:
    def __init__(self):
        self.loader = DALIGenericIterator([pipeline()], ["x"], auto_reset=True)
    def __iter__(self):
        for (outputs,) in self.loader:
            yield outputs["x"]
"""
RAY = """
import ray
class Batches:
    def __init__(self):
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        ray.data.DataContext.get_current().enable_progress_bars = False
        self.rows = ray.data.range(48).map_batches(lambda rows: {"x": rows["id"][:, None].repeat(4, 1)})
    def __iter__(self):
        for batch in self.rows.iter_torch_batches(batch_size=4, dtypes=torch.float32):
            yield batch["x"]
"""

CASES = {
    "accelerate": Case(
        "accelerate",
        "accelerate",
        made_once(
            "Accelerator(cpu=True).prepare(DataLoader(Items(), batch_size=4, num_workers=2))", ACCELERATE
        ),
        workers=2,
        inner=24,
    ),
    "accelerate-dispatcher": Case(
        "accelerate",
        "accelerate",
        made_once(
            "Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))"
            ".prepare(DataLoader(Items(), batch_size=4))",
            ACCELERATE,
        ),
        workers=0,
        inner=24,
    ),
    "fabric": Case(
        "lightning",
        "lightning.fabric",
        made_once(
            "Fabric(accelerator='cpu').setup_dataloaders(DataLoader(Items(), batch_size=4, num_workers=2))",
            "from lightning.fabric import Fabric",
        ),
        workers=2,
        inner=24,
    ),
    "fastai": Case(
        "fastai",
        "fastai",
        made_once(
            "Loader(Items(), bs=4, num_workers=2)", "from fastai.data.load import DataLoader as Loader"
        ),
        workers=2,
        inner=24,
    ),
    "monai-threads": Case(
        "monai",
        "monai",
        made_once("Loader(Items(), batch_size=4)", "from monai.data import ThreadDataLoader as Loader"),
        workers=0,
        inner=24,
    ),
    "torchdata-nodes": Case(
        "torchdata", "torchdata.nodes", made_once("nodes.Loader(graph())", NODES), dataset="Prefetcher"
    ),
    "webdataset": Case(
        "webdataset",
        "webdataset",
        made_once(
            "webdataset.WebLoader(Samples(), batch_size=2, num_workers=2)"
            ".unbatched().batched(4, collation_fn=joined)",
            WEBDATASET,
        ),
        workers=2,
        dataset="Samples",
        inner=48,
    ),
    "spdl": Case(
        "spdl",
        "spdl",
        made_once(
            "Loader(range(48), preprocessor=load, batch_size=4, aggregator=torch.stack, num_threads=2)", SPDL
        ),
        dataset="range",
    ),
    "spdl-pipeline": Case(
        "spdl", "spdl", made_once("Piped()", PIPELINE), dataset="Pipeline", steps=12, epochs=1
    ),
    "grain": Case(
        "grain",
        "grain",
        made_once(
            "grain.DataLoader(data_source=Arrays(), sampler=grain.SequentialSampler(48, shard_options="
            "grain.NoSharding()), operations=[grain.Batch(4)], worker_count=0)",
            GRAIN,
        ),
        dataset="Arrays",
    ),
    "grain-dataset": Case(
        "grain",
        "grain",
        made_once("grain.MapDataset.source(Arrays()).to_iter_dataset().batch(4)", GRAIN),
        dataset="Arrays",
    ),
    "monai-thread-workers": Case(
        "monai",
        "monai",
        made_once(
            "Loader(Items(), batch_size=4, num_workers=2, use_thread_workers=True)",
            "from monai.data import ThreadDataLoader as Loader",
        ),
        inner=24,
    ),
    "pyg": Case(
        "torch_geometric",
        "torch_geometric",
        made_once(
            "NodeLoader(graph, Sampler(), batch_size=4, num_workers=2, filter_per_worker=False)", NODE_LOADER
        ),
        workers=2,
        dataset="NodeLoader",
        inner=24,
    ),
    "datasets": Case("datasets", "datasets", made_once("Tensors()", ROWS), dataset="Dataset"),
    "dali": Case("dali", "nvidia.dali", made_once("Batches()", DALI), dataset="DALIGenericIterator"),
    "ray": Case("ray", "ray", made_once("Batches()", RAY), dataset="Dataset"),
    "ultralytics": Case(
        "ultralytics",
        "ultralytics",
        made_once(
            "Loader(Items(), batch_size=4, num_workers=2)",
            "from ultralytics.data.build import InfiniteDataLoader as Loader",
        ),
        workers=2,
        inner=24,
    ),
}


# Each starts several interpreters for some seconds: `tools/test --programs` runs them all.
MANY_STARTS = ("accelerate", "accelerate-dispatcher", "torchdata-nodes", "stateful-restored")


def but_many_starts(names: Iterable[str]) -> list[object]:
    """Leave what takes long out of the suite that runs at each change."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in MANY_STARTS else name for name in names]


def needs(module: str) -> None:
    """Skip where the library is not installed: the battery of programs installs all of them."""
    if module == "ultralytics":
        needs("torchvision")
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(f"{module} is not installed")


def program(make: str, epochs: int = 2) -> str:
    return HEAD + make + TAIL.replace("EPOCHS", str(epochs))


def as_bare(directory: Path, script: str) -> Run:
    """Run the program bare and traced; both print the same, and the agent found nothing wrong."""
    path = directory / "program.py"
    path.write_text(script)
    line = [sys.executable, str(path)]
    variables = environment()
    bare = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=280, env=variables)
    if "Creating new Ultralytics Settings" in bare.stdout:  # at the first start alone
        bare = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=280, env=variables)
    assert bare.returncode == 0, bare.stderr
    run = run_script(directory, script)
    assert (run.code, run.stdout) == (0, bare.stdout), run.stderr
    logs = list(run.session.glob("processes/*/agent.log"))
    assert not logs, logs[0].read_text()
    return run


@pytest.mark.parametrize("name", but_many_starts(CASES))
def test_a_loader_of_another_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, name: str
) -> None:
    case = CASES[name]
    if name == "fabric" and not request.config.getoption("--programs"):
        pytest.skip("to import it takes 5 s, twice: run it with --programs")
    needs(case.module)
    monkeypatch.setenv(
        "YOLO_CONFIG_DIR", str(tmp_path)
    )  # ultralytics writes its settings at the first import
    run = as_bare(tmp_path, program(case.make, case.epochs))
    assert run.stdout == f"{case.steps} {48 * 47 / 2 * case.epochs}\n"
    (rank,) = run.report()["ranks"]
    outer = [loader for loader in rank["loaders"] if loader["library"] == case.library]
    assert [(loader["batches"], loader["dataset"]) for loader in outer] == [(case.steps, case.dataset)]
    inner = [loader for loader in rank["loaders"] if not loader["wrapped"]]
    assert [loader["batches"] for loader in inner] == ([] if case.inner is None else [case.inner])
    if case.workers is not None:
        assert inner[0]["workers"] == case.workers
        assert_made(run, inner[0]["id"], workers=case.workers > 0)


def assert_made(run: Run, loader: int, workers: bool) -> None:
    """Every batch of `loader` meets its production, in a worker if it has `workers`."""
    session = open_session(run.session)
    (rank,) = session.ranks
    assert bool(rank.workers) is workers
    analysis = RankAnalysis(session, rank)
    (found,) = [each for each in analysis.loaders if each.number == loader]
    for item in analysis.explained(found):
        assert item.delivery.taken_ns is not None
        assert item.delivery.prepared_ns is not None
        assert sum(item.causes.values()) == item.delivery.wait_ns


STATEFUL = """
import sys
from torchdata.stateful_dataloader import StatefulDataLoader

class Counted(Stream):
    def __init__(self):
        self.passed = 0
    def __iter__(self):
        return self
    def __next__(self):
        if self.passed == 12:
            raise StopIteration
        self.passed += 1
        return load(self.passed)
    def state_dict(self):
        return {"passed": self.passed}
    def load_state_dict(self, state):
        self.passed = state["passed"]

def train(loader, most=None):
    seen = []
    for batch in loader:
        (batch * weight).sum().backward()
        seen.append(sorted(batch[:, 0].tolist()))
        if most is not None and len(seen) == most:
            break
    return seen

torch.manual_seed(0)  # a state holds the workers' seed
weight = torch.ones(4, requires_grad=True)
"""

STATEFUL_CASES = [
    ("Items", "num_workers=0", 2),
    ("Items", "num_workers=2", 2),
    ("Stream", "num_workers=2, persistent_workers=True", 3),
    ("Items", "num_workers=1, multiprocessing_context='spawn'", 1),
]

STATEFUL_LOADERS = (
    HEAD
    + STATEFUL
    + """
if __name__ == "__main__":
    for kind, options, epochs in CASES:
        loader = eval(f"StatefulDataLoader({kind}(), batch_size=4, {options})")
        print([train(loader) for _ in range(epochs)])
"""
)


def test_stateful_dataloaders_are_known_as_torchs(tmp_path: Path) -> None:
    needs("torchdata.stateful_dataloader")
    run = as_bare(tmp_path, STATEFUL_LOADERS.replace("CASES", repr(STATEFUL_CASES)))
    (rank,) = run.report()["ranks"]
    for (kind, options, epochs), loader in zip(STATEFUL_CASES, rank["loaders"], strict=True):
        assert (loader["dataset"], loader["library"]) == (kind, None)
        assert (loader["batches"], loader["epochs"]) == (12 * epochs, epochs)
        assert loader["workers"] == int(options.partition("num_workers=")[2][0])
        assert loader["start_method"] == (
            "spawn" if "spawn" in options else "fork" if loader["workers"] else None
        )
        assert_made(run, loader["id"], workers=True)  # of another case, where it has none


RESUMED = (
    HEAD
    + STATEFUL
    + """
if __name__ == "__main__":
    for kind in (Items, Counted):
        for workers in (0, 2):
            first = StatefulDataLoader(kind(), batch_size=2, num_workers=workers)
            seen = train(first, most=3)
            state = first.state_dict()
            second = StatefulDataLoader(kind(), batch_size=2, num_workers=workers)
            second.load_state_dict(state)
            print(seen, train(second, most=3), repr(state))
"""
)


@pytest.mark.slow
def test_a_stateful_dataloader_resumes_as_bare(tmp_path: Path) -> None:
    """Its state is the same, and batches that it skips while it resumes were delivered to nobody."""
    needs("torchdata.stateful_dataloader")
    run = as_bare(tmp_path, RESUMED)
    (rank,) = run.report()["ranks"]
    assert sum(loader["batches"] for loader in rank["loaders"]) == 2 * 2 * (3 + 3)


SWEPT = {
    "stateful": (
        "torchdata.stateful_dataloader",
        "from torchdata.stateful_dataloader import StatefulDataLoader as Loader",
        "Loader(Items(), batch_size=4, num_workers=1)",
    ),
    "stateful-restored": (
        "torchdata.stateful_dataloader",
        """
from torchdata.stateful_dataloader import StatefulDataLoader as Loader
def restored():
    first = Loader(Items(), batch_size=4, num_workers=1)
    iterator = iter(first)
    next(iterator)
    second = Loader(Items(), batch_size=4, num_workers=1)
    second.load_state_dict(first.state_dict())
    return second
""",
        "restored()",
    ),
    "fastai": (
        "fastai",
        "from fastai.data.load import DataLoader as Loader",
        "Loader(Items(), bs=4, num_workers=1)",
    ),
    "ultralytics": (
        "ultralytics",
        "from ultralytics.data.build import InfiniteDataLoader as Loader",
        "Loader(Items(), batch_size=4, num_workers=1)",
    ),
    "accelerate": (
        "accelerate",
        ACCELERATE,
        "Accelerator(cpu=True).prepare(DataLoader(Items(), batch_size=4, num_workers=1))",
    ),
}


@pytest.mark.parametrize("name", but_many_starts(SWEPT))
def test_a_sweep_sets_the_workers_of_another_librarys_loader(tmp_path: Path, name: str) -> None:
    module, imports, call = SWEPT[name]
    needs(module)
    script = program(made_once(call, imports), 9)
    asked = encode_settings({"workers": "2", "prefetch": "3", "steps": "14"})
    run = run_script(tmp_path, script, **{OVERRIDE_VARIABLE: asked})
    assert run.code == 0, run.stderr
    assert "num_workers, prefetch_factor of the loader of Items: 1, 2 → 2, 3" in run.stderr
    (rank,) = run.report()["ranks"]
    loaders = [loader for loader in rank["loaders"] if not loader["wrapped"]]
    assert {loader["workers"] for loader in loaders} == {2}
    # The steps that were asked for, one for each further worker's first batch.
    assert sum(loader["batches"] for loader in loaders) == 14 + 1


DISPATCHED = (
    HEAD
    + ACCELERATE
    + """
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Items(), batch_size=4))
for batch in loader:
    accelerator.backward(model(batch).sum())
    optimizer.step()
accelerator.end_training()
"""
)


@pytest.mark.slow
def test_a_dispatcher_hands_batches_to_every_rank(tmp_path: Path) -> None:
    """Rank 0 reads for both: 12 batches of the DataLoader, 6 steps on each rank."""
    needs("accelerate")
    (tmp_path / "program.py").write_text(DISPATCHED)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run = run_traced(tmp_path, [*launcher, str(tmp_path / "program.py")], ["-q", "--torch-steps", "off"])
    assert run.code == 0, run.stderr
    ranks = run.report()["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    for rank in ranks:
        (outer,) = [loader for loader in rank["loaders"] if loader["library"] == "accelerate"]
        assert (outer["batches"], outer["primary"], rank["steps"]["begun"]) == (6, True, 6)
    inner = [loader["batches"] for loader in ranks[0]["loaders"] if not loader["wrapped"]]
    assert inner == [12]


ARRAYS = """
import sys, time
import numpy
import iotrace

def batches():
    for index in range(20):
        time.sleep(0.002)
        yield numpy.full(1000, index)

total = 0.0
for batch in iotrace.batches(batches()):
    total += batch.sum()
print(total)
"""


@pytest.mark.parametrize("marked", [True, False])
def test_nothing_is_said_about_torch_without_it(tmp_path: Path, marked: bool) -> None:
    run = run_script(
        tmp_path, ARRAYS if marked else ARRAYS.replace("iotrace.batches(batches())", "batches()")
    )
    assert (run.code, run.stdout) == (0, "190000.0\n")
    report = run.report()
    assert "torch" not in json.dumps(report["not_captured"]) + run.stderr
    batches = [loader["batches"] for rank in report["ranks"] for loader in rank["loaders"]]
    assert batches == ([20] if marked else [])


PROFILED = (
    HEAD
    + STATEFUL
    + """
import iotrace
import torchdata.nodes as nodes
import torchdata.stateful_dataloader.stateful_dataloader as loaders
import torchdata.stateful_dataloader.worker as worker

def graph():
    node = nodes.SamplerWrapper(torch.utils.data.SequentialSampler(range(48)))
    return nodes.Mapper(nodes.Batcher(node, 4), torch.tensor)

def patched():
    functions = [loaders._worker_loop, worker._worker_loop, nodes.Loader.__iter__]
    functions.append(nodes.loader.LoaderIterator.__next__)
    iterators = [loaders._StatefulBaseDataLoaderIter, loaders._StatefulMultiProcessingDataLoaderIter]
    functions += [kind.__init__ for kind in iterators]
    return [function for function in functions if hasattr(function, "__iotrace_original__")]

if __name__ == "__main__":
    from accelerate import Accelerator  # here, as spawned workers need it not
    kept = Accelerator(cpu=True).prepare(DataLoader(Items(), batch_size=4))
    with iotrace.profile(output="session", report=False):
        for context in ("fork", "spawn"):
            train(StatefulDataLoader(Items(), batch_size=4, num_workers=1, multiprocessing_context=context))
        train(kept)
        total = sum(batch.sum().item() for batch in nodes.Loader(graph()))
    print(total, patched())
    train(kept)
    train(StatefulDataLoader(Items(), batch_size=4, num_workers=1, multiprocessing_context="spawn"))
"""
)


def test_a_profiled_block_hooks_what_is_imported_and_takes_it_back(tmp_path: Path) -> None:
    for module in ("accelerate", "torchdata.nodes"):
        needs(module)
    run = run_bare(tmp_path, PROFILED)
    assert (run.code, run.stdout) == (0, "1128 []\n"), run.stderr
    loaders = report_of(tmp_path / "session")["ranks"][0]["loaders"]
    assert [(loader["library"], loader["batches"], loader["start_method"]) for loader in loaders] == [
        (None, 12, "fork"),
        (None, 12, "spawn"),
        ("accelerate", 12, None),
        (None, 12, None),
        ("torchdata", 12, None),
    ]
    logs = list((tmp_path / "session").glob("processes/*/agent.log"))
    assert not logs, logs[0].read_text()
