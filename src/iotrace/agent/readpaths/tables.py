"""Hook readers of tables: pyarrow and pandas. Both may decode on threads of pyarrow's."""

from __future__ import annotations

from iotrace.agent.patching import observe
from iotrace.agent.readpaths.record import ReadPaths, path_of, result_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from iotrace.agent.readpaths.record import Describe
    from iotrace.agent.recording.recorder import Recorder

    Hook = Callable[[ReadPaths, Any], None]


def _pyarrow_parquet(read_paths: ReadPaths, module: Any) -> None:
    """Hook reads of ``ParquetFile`` and ``ParquetDataset``, and ``read_table``, which uses the latter."""
    read_paths.patch(
        module, "read_table", "pyarrow.parquet.read_table", result_of("source"), own_threads=True
    )
    file_of = _remember_source(read_paths.recorder, module.ParquetFile, "source")
    shown = "pyarrow.parquet.ParquetFile"
    read_paths.patch_methods(module.ParquetFile, "read read_row_group read_row_groups", shown, file_of)
    shown = f"{shown}.iter_batches"
    read_paths.patch_iterator(module.ParquetFile, "iter_batches", shown, lambda args, _: file_of(args[0]))
    dataset_of = _remember_source(read_paths.recorder, module.ParquetDataset, "path_or_paths")
    read_paths.patch_methods(module.ParquetDataset, "read", "pyarrow.parquet.ParquetDataset", dataset_of)


def _pyarrow_ipc(read_paths: ReadPaths, module: Any) -> None:
    """Hook the record batches of IPC files and streams; a memory map's are read later, by page faults."""
    for owner, names in (
        (module.RecordBatchFileReader, "read_all get_batch get_record_batch"),
        (module.RecordBatchStreamReader, "read_all read_next_batch __next__"),
    ):
        file_of = _remember_source(read_paths.recorder, owner, "source")
        read_paths.patch_methods(owner, names, f"pyarrow.ipc.{owner.__name__}", file_of)


def _remember_source(recorder: Recorder, owner: Any, parameter: str) -> Callable[[Any], str]:
    """Note the source that each object of class `owner` is made with; return what gives an object's path."""
    from weakref import ref  # pyarrow has imported it

    # By id: some compare by value and have no hash, which a WeakKeyDictionary would need.
    sources: dict[int, tuple[Any, str]] = {}

    def made(_: Any, __: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        key = id(args[0])
        forget = ref(args[0], lambda _: sources.pop(key, None))
        sources[key] = forget, path_of(args[1] if len(args) > 1 else kwargs[parameter])

    observe(owner, "__init__", recorder, f"noting the file of a {owner.__name__}", after=made)
    return lambda reader: sources.get(id(reader), (None, ""))[1]


def _functions(library: str, parameters: dict[str, str]) -> Hook:
    """Make a hook for functions that read one file each; `parameters`: which holds it, by function's name."""

    def hook(read_paths: ReadPaths, module: Any) -> None:
        for name, parameter in parameters.items():
            read_paths.patch(module, name, f"{library}.{name}", _described(parameter), own_threads=True)

    return hook


def _described(parameter: str) -> Describe:
    describe = result_of(parameter)

    def described(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, str]:
        size_bytes, path = describe(result, args, kwargs)
        return _frame_bytes(result) if size_bytes < 0 else size_bytes, path

    return described


def _frame_bytes(frame: Any) -> int:
    """Return the bytes of a pandas object's columns; ``memory_usage`` takes a thousand times as long."""
    blocks = getattr(getattr(frame, "_mgr", None), "blocks", None)
    if blocks is None:
        return -1
    return sum(int(block.values.nbytes) for block in blocks)


def _pandas_text(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``read_csv`` and the like, and the chunks of the reader that they return with ``chunksize``."""
    _functions("pandas", dict.fromkeys(("read_csv", "read_table", "read_fwf"), "filepath_or_buffer"))(
        read_paths, module
    )

    def described(result: Any, args: tuple[Any, ...], _: dict[str, Any]) -> tuple[int, str]:
        handles = getattr(args[0], "handles", None)
        return _frame_bytes(result), path_of(getattr(handles, "handle", None))

    read_paths.patch(module.TextFileReader, "read", "pandas.TextFileReader.read", described, own_threads=True)


HOOKS: dict[str, Hook] = {
    "pyarrow.parquet.core": _pyarrow_parquet,
    "pyarrow.ipc": _pyarrow_ipc,
    "pyarrow.feather": _functions("pyarrow.feather", {"read_feather": "source", "read_table": "source"}),
    "pyarrow.orc": _functions("pyarrow.orc", {"read_table": "source"}),
    "pyarrow.csv": _functions("pyarrow.csv", {"read_csv": "input_file"}),
    "pyarrow.json": _functions("pyarrow.json", {"read_json": "input_file"}),
    "pandas.io.parsers.readers": _pandas_text,
    "pandas.io.parquet": _functions("pandas", {"read_parquet": "path"}),
    "pandas.io.feather_format": _functions("pandas", {"read_feather": "path"}),
    "pandas.io.orc": _functions("pandas", {"read_orc": "path"}),
    "pandas.io.pickle": _functions("pandas", {"read_pickle": "filepath_or_buffer"}),
    "pandas.io.json._json": _functions("pandas", {"read_json": "path_or_buf"}),
    "pandas.io.pytables": _functions("pandas", {"read_hdf": "path_or_buf"}),
    "pandas.io.excel._base": _functions("pandas", {"read_excel": "io"}),
}
