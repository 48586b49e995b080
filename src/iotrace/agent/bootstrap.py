"""Start the agent in a traced process; called by the ``.pth`` file or by the ``sitecustomize`` shim.

`start` runs before the program's first line, in every Python process of the command. It must be quick, must
never raise, and must do nothing in a process that loads no data. `iotrace.profile` begins later, for a part
of the program.
"""

from __future__ import annotations

import os
import sys
from posix import getpid, stat

from iotrace.agent import forks, imports, patching
from iotrace.agent.recording import import_times, regions
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import identity, names
from iotrace.session.guard import ours, remember

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

# The modules in which libraries define their readers: the keys of `agent.readpaths.table`.
READ_PATH_MODULES = (
    *("anemoi.training.data.multidataset", "anemoi.datasets.usage.gridded.store"),
    *("h5py", "zarr.core", "zarr.core.array", "netCDF4._netCDF4", "numpy", "torch", "torchaudio"),
    *(f"xarray.backends.{name}" for name in ("netCDF4_", "h5netcdf_", "scipy_")),
    *("safetensors", "safetensors.torch", "safetensors.numpy", "torchvision.io.image"),
    *("PIL.Image", "PIL.ImageFile", "tifffile.tifffile", "cv2", "turbojpeg", "simplejpeg._jpeg"),
    *("rasterio.io", "osgeo.gdal", "nibabel.arrayproxy", "pydicom.filereader", "pydicom.dataset"),
    *("soundfile", "av.container.input", "av.packet", "av.video.frame"),
    *("decord.video_reader", "decord.audio_reader"),
    *(f"torchcodec.decoders._{kind}_decoder" for kind in ("video", "audio")),
    *("tarfile", "zstandard", "lz4.frame", "lz4.block", "blosc.toplevel", "blosc2.core", "blosc2.ndarray"),
    *("sqlite3.dbapi2", "duckdb", "lmdb.cpython", "datasets.arrow_dataset", "fsspec.asyn", "obstore"),
    "datasets.formatting.formatting",
    *(f"polars.io.{name}" for name in ("csv.functions", "parquet.functions", "ipc.functions", "ndjson")),
    *("polars.io.json.read", "polars.lazyframe.frame"),
    *(f"pyarrow.{name}" for name in ("parquet.core", "ipc", "feather", "orc", "csv", "json", "_dataset")),
    *(f"pandas.io.{name}" for name in ("parsers.readers", "parquet", "feather_format", "orc", "pickle")),
    *(f"pandas.io.{name}" for name in ("json._json", "pytables", "excel._base")),
)
# Likewise of the standard library. Programs that load no data import them, too: they are hooked behind numpy.
STANDARD_MODULES = ("pickle", "json", "gzip", "zlib", "bz2", "lzma", "_compression", "zipfile")
# The modules in which libraries define their loaders: the keys of `agent.loaders.table`.
LOADER_MODULES = (
    "accelerate.data_loader",
    *("datasets.arrow_dataset", "datasets.iterable_dataset", "fastai.data.load"),
    *("grain._src.python.data_loader", "keras.src.backend.jax.trainer"),
    *("lightning.fabric.wrappers", "lightning_fabric.wrappers"),
    *("monai.data.thread_buffer", "nvidia.dali.plugin.base_iterator", "ray.data.iterator"),
    *("spdl.pipeline._pipeline", "spdl.pipeline._iter_utils._subprocess", "spdl.dataloader._dataloader"),
    "streaming.base.dataset",
    *[f"spdl.dataloader.{name}" for name in ("_cache_dataloader", "_pytorch_dataloader")],
    "tensorflow.python.data.ops.dataset_ops",
    *[f"torch_geometric.loader.{name}" for name in ("link_loader", "node_loader", "prefetch", "zip_loader")],
    *("torchdata.nodes.loader", "ultralytics.data.build", "webdataset.pipeline"),
)
LOKY_MODULES = ("loky.process_executor", "joblib.externals.loky.process_executor")
# Whose pools a sweep may give other numbers of workers: the keys of `pools.override.POOLS`.
OVERRIDDEN_POOLS = (
    *("concurrent.futures.thread", "concurrent.futures.process", "multiprocessing.pool", "joblib.parallel"),
    *("torchdata.nodes.map", "spdl.pipeline._builder"),
)
# Where libraries call the program's functions, or are told how many at once: functions of `loaders.stages`.
_GRAIN = "grain._src.python.dataset.transformations"
STAGE_MODULES = {
    "spdl.pipeline._builder": "hook_spdl_builder",
    "spdl.pipeline._components._pipe": "hook_spdl_pipes",
    f"{_GRAIN}.map": "hook_grain_maps",
    f"{_GRAIN}.source": "hook_grain_sources",
    "keras.src.trainers.data_adapters.py_dataset_adapter": "hook_keras_datasets",
    "torchdata.nodes.map": "hook_mapper",
}
STATEFUL_LOADER = "torchdata.stateful_dataloader"
# What saves checkpoints (`checkpoints.SAVES`).
SAVING_MODULES = (
    *("torch.serialization", "torch.distributed.checkpoint.state_dict_saver", "safetensors.torch"),
    *("transformers.trainer", "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
)
# Whose models train without torch, call by call (`step_calls`).
STEP_MODULES = (
    *(f"sklearn.linear_model._{name}" for name in ("stochastic_gradient", "passive_aggressive")),
    *(f"sklearn.neural_network._{name}" for name in ("multilayer_perceptron", "rbm")),
    *("sklearn.naive_bayes", "sklearn.multiclass", "sklearn.multioutput", "sklearn.preprocessing._data"),
    *("sklearn.cluster._birch", "sklearn.cluster._kmeans"),
    *(f"sklearn.decomposition._{name}" for name in ("dict_learning", "incremental_pca", "lda", "nmf")),
    *(f"keras.src.backend.{name}.trainer" for name in ("jax", "tensorflow", "torch")),
)
LIGHTNING = ("pytorch_lightning", "lightning.pytorch")
SPAWNING_MODULES = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
_FOREIGN_PROFILERS = "torch_profiler.foreign_profilers"
_TENSORFLOW = "tensorflow.python"
_PROGRAM_DFTRACER = "dftracer_compat.program_dftracer"

# Modules that know threads: a fork has one alone.
_OF_THREADS = (
    *("handovers", "pools.tasks", "pools.executors", "pools.process_pools", "pools.queues", "pools.pipes"),
    *("pools.joblib_calls", "pools.meetings", "pools.event_loops", "pools.results"),
    *("recording.thread_clocks", "torch_profiler.window"),
)

# The process that has been started; a fork makes it differ. (A venv runs .pth files twice.)
_started_in = 0
_recorder: Recorder | None = None
_children_hooked = False


def start() -> None:
    """Start the agent once in this process, if the environment asks for it."""
    global _started_in
    if _started_in == getpid():
        return
    _started_in = getpid()
    session = _settings().get("session", "")
    process_role = identity.role(list(getattr(sys, "orig_argv", [])))
    if process_role == "helper":
        return
    try:
        stat(f"{session}/{names.PROCESSES}")
        recorder = begin(session, process_role)
    except ours(OSError):  # no directory to report to: the program runs as if we were not here
        return
    forks.close_before_exec(recorder)
    log_directory = f"{session}/{names.POSIX}"
    if _traced_into(log_directory):
        import atexit

        exits = imports.load("dftracer_compat.exits")
        exits.flush_before_exec(log_directory, recorder)
        atexit.register(exits.flush_if_interrupted, log_directory, recorder)


def _settings() -> dict[str, str]:
    return names.decode_settings(os.environ.get(names.SETTINGS_VARIABLE, ""))


def recording() -> bool:
    """Return whether this process records into a session."""
    return _recorder is not None


def begin(session: str, process_role: str, settings: dict[str, str] | None = None) -> Recorder:
    """Record this process into `session` from now on; OSError where that cannot be written to.

    `settings` stand for those of the environment.
    """
    global _recorder
    recorder = Recorder(session)
    recorder.open(identity.describe(process_role))
    _recorder = recorder
    _install(recorder, session, _settings() if settings is None else settings)
    return recorder


def _install(recorder: Recorder, session: str, settings: dict[str, str]) -> None:
    import atexit

    _remember_handlers(recorder)
    patching.on_undo(imports.install(_hooks(recorder, session, settings), recorder.absorb))
    regions.attach(recorder, _record_source)
    # Registered first, so it runs last: after the program's own handlers and multiprocessing's.
    atexit.register(recorder.close_at_exit)
    patching.on_undo(lambda: atexit.unregister(recorder.close_at_exit))
    forks.hook_forks(recorder)
    _hook_children()
    recorder.imports = import_times.install()


def _remember_handlers(recorder: Recorder) -> None:
    """Know the code of the program's signal handlers: those that are installed, and those that will be."""
    import _signal  # type: ignore[import-not-found]  # `signal` is not imported for us

    for number in range(1, _signal.NSIG):
        remember(number, _signal.getsignal(number))

    def installing(args: list[Any], _: dict[str, Any]) -> None:
        remember(*args)

    patching.observe(_signal, "signal", recorder, "remembering a signal handler", before=installing)


def _hooks(recorder: Recorder, session: str, settings: dict[str, str]) -> dict[str, imports.Hook]:
    """Return what to do when a module has been imported, by the module's name."""
    hooks = {
        "multiprocessing.util": lambda module: _close_with_processes(module, recorder),
        **dict.fromkeys(SPAWNING_MODULES, _hook("dataloader.spawning", "hook_dump", recorder)),
        "multiprocessing.spawn": _hook("dataloader.spawning", "hook_preparing", recorder),
        "torch.utils.data.dataloader": lambda module: _hook_loaders(module, recorder, settings),
        "torch.autograd": _hook("training", "hook_autograd", recorder),
        "torch.optim.optimizer": _hook("training", "hook_optimizers", recorder),
        "torch.nn.modules.module": _hook("phases.roots", "hook_roots", recorder),
        "torch._dynamo.callback": _hook("phases.roots", "hook_compiler", recorder),
        "torch.compiler": lambda module: regions.ask_compiler(getattr(module, "is_compiling", None)),
        "torch.distributed.distributed_c10d": _hook("training", "hook_distributed", recorder),
        "torch.nn.parallel.distributed": _hook("phases.reductions", "hook_ddp", recorder),
        "torch.cuda.memory": _hook(_FOREIGN_PROFILERS, "hook_snapshots", recorder),
        "torch.profiler": _hook(_FOREIGN_PROFILERS, "hook_torch", recorder),
        "concurrent.futures._base": _hook("pools.executors", "hook_futures", recorder),
        "concurrent.futures.thread": _hook("pools.executors", "hook_threads", recorder),
        "concurrent.futures.process": _hook("pools.executors", "hook_processes", recorder),
        **dict.fromkeys(LOKY_MODULES, _hook("pools.executors", "hook_processes", recorder)),
        "joblib.parallel": _hook("pools.joblib_calls", "hook_parallel", recorder),
        "queue": lambda module: _hook_queues(module, recorder),
        "threading": _hook("pools.meetings", "watch", recorder),
        "asyncio.selector_events": _hook("pools.event_loops", "hook_selectors", recorder),
        "asyncio.futures": _hook("pools.event_loops", "hook_futures", recorder),
        "asyncio.queues": _hook("pools.event_loops", "hook_queues", recorder),
        "multiprocessing.connection": _hook("pools.pipes", "watch_connections", recorder),
        "multiprocessing.queues": _hook("pools.pipes", "watch_queues", recorder),
        "multiprocessing.synchronize": _hook("pools.process_locks", "hook_locks", recorder),
        "filelock._api": _hook("file_locks", "hook_filelock", recorder),
        "multiprocessing.pool": _hook("pools.process_pools", "hook_pool", recorder),
        "dftracer.python.env": _hook(_PROGRAM_DFTRACER, "hook_settings", settings.get("dftracer") == "on"),
        "dftracer.python.common": _hook(_PROGRAM_DFTRACER, "hook_events", recorder, session),
        **_read_path_hooks(recorder, settings),
        f"{_TENSORFLOW}.ops.script_ops": _hook("loaders.tensorflow", "hook_functions", recorder),
        "jax": _hook("step_functions", "hook_jax", recorder),
        "optax": _hook("step_functions", "hook_optax", recorder),
        f"{_TENSORFLOW}.eager.polymorphic_function.polymorphic_function": _hook(
            "step_functions", "hook_tf_functions", recorder
        ),
        f"{_TENSORFLOW}.eager.backprop": _hook("step_functions", "hook_tf_gradients", recorder),
        f"{_TENSORFLOW}.framework.ops": _hook("step_functions", "hook_tf_tensors", recorder),
        "grain._src.python.dataset.dataset": _hook("loaders.record", "hook_grain", recorder),
        **{name: _hook("loaders.stages", function, recorder) for name, function in STAGE_MODULES.items()},
        f"{STATEFUL_LOADER}.worker": _hook("dataloader.worker", "hook_worker_loop", recorder),
        f"{STATEFUL_LOADER}.stateful_dataloader": _hook("loaders.stateful", "hook_stateful", recorder),
    }
    asked = names.decode_settings(os.environ.get(names.OVERRIDE_VARIABLE, ""))
    workers = asked.get("workers", "")
    if workers.isdigit():
        for name in OVERRIDDEN_POOLS:
            _add(hooks, name, _hook("pools.override", "hook_pool", recorder, int(workers)))
    if kept_open := asked.get("kept_open"):
        _add(hooks, "tarfile", _hook("trial_calls", "hook_archives", recorder, kept_open.split("/")))
    if "tables" in asked:
        _add(hooks, "pandas.io.parsers.readers", _hook("trial_calls", "hook_tables"))
    for package in LIGHTNING:
        hooks[f"{package}.profilers.pytorch"] = _hook(_FOREIGN_PROFILERS, "hook_lightning", recorder)
        hooks[f"{package}.profilers.profiler"] = _hook("lightning", "hook_profiler", recorder)
        hooks[f"{package}.trainer.trainer"] = _hook("lightning", "hook_trainer", recorder)
    _add(hooks, "multiprocessing.spawn", _hook("pools.pipes", "hook_children", recorder))
    for name in ("numpy", "queue"):
        _add(hooks, name, _hook("file_locks", "hook_calls", recorder))
    for name in SAVING_MODULES:
        _add(hooks, name, _hook("checkpoints", "hook_saves", recorder, name))
    for name in STEP_MODULES:
        _add(hooks, name, _hook("step_calls", "hook_calls", recorder, name))
    _add(hooks, "keras.src.callbacks.callback_list", _hook("step_calls", "hook_fit", recorder))
    for name in LOADER_MODULES:
        _add(hooks, name, _hook("loaders.record", "hook_loaders", recorder, name))
    _add(hooks, "grain._src.python.dataset.dataset", _hook("loaders.stages", "hook_grain_settings", recorder))
    _add(hooks, f"{_TENSORFLOW}.data.ops.dataset_ops", _hook("loaders.stages", "hook_tf_map", recorder))
    _add(hooks, f"{_TENSORFLOW}.ops.script_ops", _hook("loaders.stages", "hook_tf_functions", recorder))
    if settings.get(names.TORCH_STEPS, names.OFF) != names.OFF:
        ranges = _hook("torch_profiler.module_ranges", "hook_modules", recorder)
        _add(hooks, "torch.nn.modules.module", ranges)
    hooks["_posixsubprocess"] = lambda module: forks.hook_starts(module, recorder)
    log_directory = f"{session}/{names.POSIX}"
    if _traced_into(log_directory):
        hook = _hook("dftracer_compat.fork_exec", "hook_fork_exec", recorder, log_directory)
        _add(hooks, "_posixsubprocess", hook)
    return hooks


def _read_path_hooks(recorder: Recorder, settings: dict[str, str]) -> dict[str, imports.Hook]:
    added = settings.get(names.READ_PATHS, "")
    of_others = [line.partition("\t")[0] for line in added.splitlines()]

    def hook(name: str) -> imports.Hook:
        return _hook("readpaths.hooks", "hook_library", recorder, name, added)

    hooks = {name: hook(name) for name in (*READ_PATH_MODULES, *of_others)}
    standard = {name: hook(name) for name in STANDARD_MODULES}

    def behind_numpy(module: Any) -> None:
        if "numpy" in sys.modules:
            standard[module.__name__](module)

    def those_before(_: Any) -> None:
        for name in STANDARD_MODULES:
            if name in sys.modules:
                imports.run_hook(standard[name], sys.modules[name], recorder.absorb)

    hooks.update(dict.fromkeys(STANDARD_MODULES, behind_numpy))
    _add(hooks, "numpy", those_before)
    return hooks


def _add(hooks: dict[str, imports.Hook], name: str, hook: imports.Hook) -> None:
    """Have `hook` run behind the one that the module `name` has, if any."""
    before = hooks.get(name)

    def both(module: Any) -> None:
        if before is not None:
            before(module)
        hook(module)

    hooks[name] = hook if before is None else both


def _hook(name: str, function: str, *arguments: Any) -> imports.Hook:
    """Make a hook of a function in the agent's module `name`, which the hook imports when it runs."""

    def imported(module: Any) -> None:
        getattr(imports.load(name), function)(module, *arguments)

    return imported


def _record_source(iterable: Any, iterator: Any, recorder: Recorder) -> Any:
    """Have the items of ``iotrace.batches`` recorded."""
    return imports.load("dataloader.wrapped_source").recorded(iterable, iterator, recorder)


def _hook_loaders(module: Any, recorder: Recorder, settings: dict[str, str]) -> None:
    consumer = imports.load("dataloader.consumer")
    asked = os.environ.get(names.OVERRIDE_VARIABLE, "")
    if asked:  # below the recording, which then sees what becomes of the loader
        override = imports.load("sweep_override")
        override.hook_override(module, recorder, override.Override(names.decode_settings(asked)))
    consumer.hook_loader(module, recorder)
    imports.load("handovers").install(recorder)
    imports.load("torch_profiler.window").install(recorder, settings)


def _hook_queues(module: Any, recorder: Recorder) -> None:
    """Patch queues, and what else threads wait at, which they need."""
    imports.load("pools.queues").hook_queues(module, recorder)
    imports.load("pools.conditions").hook_conditions(sys.modules["threading"], recorder)


def _close_with_processes(module: Any, recorder: Recorder) -> None:
    """Close where a process of multiprocessing ends: by os._exit, which runs its finalizers, not atexit.

    Finalizers are cleared after the fork, hence ours is registered by what runs after that.
    """

    def register(own: Recorder) -> None:
        module.Finalize(None, own.close_at_exit, exitpriority=-100)  # of no object: no weak reference

    module.register_after_fork(recorder, register)


def _traced_into(log_directory: str) -> bool:
    """Return whether dftracer was preloaded into this process, with its log below `log_directory`."""
    log = os.environ.get("DFTRACER_LOG_FILE", "")
    return os.environ.get("DFTRACER_INIT") == "PRELOAD" and log.startswith(f"{log_directory}/")


def _hook_children() -> None:
    """Register for forked children, once in a process: that cannot be taken back."""
    global _children_hooked
    if not _children_hooked:
        _children_hooked = True
        os.register_at_fork(after_in_child=_after_fork_in_child)


def _after_fork_in_child() -> None:
    global _started_in
    _started_in = getpid()
    if _recorder is None:
        return
    for name in _OF_THREADS:
        module = sys.modules.get(f"iotrace.agent.{name}")
        if module is not None:
            module.after_fork_in_child()
    try:
        if _recorder.session_over():  # a fork server that was started in a block, and outlives it
            stop()
        else:
            _recorder.after_fork_in_child(identity.describe("forked"))
    except ours(OSError):
        stop()


def stop() -> None:
    """Take every patch back and record no more."""
    global _recorder
    recorder, _recorder = _recorder, None
    regions.detach()
    patching.undo_all()
    if recorder is not None:
        recorder.over = recorder.unsettled = True
        recorder.spans.clear()
        recorder.records.clear()


def end() -> None:
    """Write what was recorded, then `stop`: the session has ended, the program goes on."""
    recorder = _recorder
    if recorder is not None:
        recorder.close()
        recorder.finish()
    stop()
