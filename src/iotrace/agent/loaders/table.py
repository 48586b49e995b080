"""The loaders of other libraries: which method returns the iterator of a pass, and what its user calls it.

A row is an outer source: what it asks of a torch DataLoader meanwhile has records of its own. `bootstrap`
names the modules; none is imported for its row.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A method that returns an iterator. A row whose method is not there is of another version."""

    library: str
    method: str  # Class.method, in the module
    # Attributes that lead from the object to what its user calls the data: the first that exists, else the
    # object itself. An item of a list is a number; ``name*`` is followed as often as there is one.
    dataset: tuple[str, ...] = ("dataset",)
    workers: str = ""  # likewise to how many processes or threads make its batches
    # What a sweep overrides, where torch's own methods do not show it: the object itself (``self``), or the
    # attribute that torch's iterators take for the loader.
    sweep: str = ""
    own: bool = True  # whether an iteration that the library itself begins counts
    name: str = ""  # what its user calls it, where no object says that


# Of grain's kinds of datasets, which it defines one by one.
GRAIN_DATASET = Row("grain", "IterDataset.__iter__", ("_parent*._source",))
_FABRIC = (Row("lightning", "_FabricDataLoader.__iter__"),)  # of Fabric.setup_dataloaders

ROWS: dict[str, tuple[Row, ...]] = {
    "accelerate.data_loader": (
        Row("accelerate", "DataLoaderShard.__iter__"),
        Row("accelerate", "DataLoaderDispatcher.__iter__"),
        Row("accelerate", "SkipDataLoader.__iter__"),
    ),
    "datasets.arrow_dataset": (Row("datasets", "Dataset.iter", (), own=False),),
    "datasets.iterable_dataset": (Row("datasets", "IterableDataset.iter", (), own=False),),
    "fastai.data.load": (Row("fastai", "DataLoader.__iter__", sweep="fake_l"),),
    "grain._src.python.data_loader": (
        Row("grain", "DataLoader.__iter__", ("_data_source",), "_multiprocessing_options.num_workers"),
    ),
    "lightning.fabric.wrappers": _FABRIC,
    "lightning_fabric.wrappers": _FABRIC,
    "monai.data.thread_buffer": (Row("monai", "ThreadDataLoader.__iter__"),),
    "nvidia.dali.plugin.base_iterator": (Row("dali", "_DaliBaseIterator.__iter__", ()),),
    "ray.data.iterator": (Row("ray", "_IterableFromIterator.__iter__", (), name="Dataset"),),
    "spdl.dataloader._cache_dataloader": (Row("spdl", "CacheDataLoader.__iter__", ("dl",)),),
    "spdl.dataloader._dataloader": (Row("spdl", "DataLoader.__iter__", ("_src",), "_num_threads"),),
    "spdl.dataloader._pytorch_dataloader": (Row("spdl", "PyTorchDataLoader.__iter__"),),
    "spdl.pipeline._pipeline": (Row("spdl", "Pipeline.get_iterator", ()),),
    "tensorflow.python.data.ops.dataset_ops": (
        Row("tensorflow", "DatasetV2.__iter__", ()),
        Row("tensorflow", "DatasetV2.as_numpy_iterator", ()),
    ),
    "torch_geometric.loader.link_loader": (Row("torch_geometric", "LinkLoader._get_iterator", ()),),
    "torch_geometric.loader.node_loader": (Row("torch_geometric", "NodeLoader._get_iterator", ()),),
    "torch_geometric.loader.prefetch": (
        Row("torch_geometric", "PrefetchLoader.__iter__", ("loader.dataset", "loader")),
    ),
    "torch_geometric.loader.zip_loader": (Row("torch_geometric", "ZipLoader._get_iterator", ()),),
    "torchdata.nodes.loader": (Row("torchdata", "Loader.__iter__", ("root",)),),
    "ultralytics.data.build": (Row("ultralytics", "InfiniteDataLoader.__iter__", sweep="self"),),
    "webdataset.pipeline": (
        Row("webdataset", "DataPipeline.__iter__", ("pipeline.0.dataset", "pipeline.0")),
    ),
}
