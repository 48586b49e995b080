"""Read paths: the library calls inside which files are read and decoded."""

from __future__ import annotations

from typing import Any

from iotrace.agent.patching import patch
from iotrace.agent.recorder import Recorder
from iotrace.agent.spans import timed
from iotrace.session.names import KIND_READ_PATH


def hook_h5py(module: Any, recorder: Recorder) -> None:
    """``h5py.Dataset.__getitem__`` and ``read_direct``: HDF5's reads, with its filters' decompression."""
    get_name = getattr(getattr(module, "h5f", None), "get_name", None)

    def path_of(dataset: Any) -> str:
        recorder.start()
        if get_name is None:
            return ""
        name = get_name(dataset.id)
        return name.decode(errors="surrogateescape") if isinstance(name, bytes) else str(name)

    def of_result(result: Any, args: tuple[Any, ...]) -> tuple[int, str]:
        return getattr(result, "nbytes", -1), path_of(args[0])

    def of_destination(result: Any, args: tuple[Any, ...]) -> tuple[int, str]:
        return getattr(args[1], "nbytes", -1), path_of(args[0])

    for method, describe in (("__getitem__", of_result), ("read_direct", of_destination)):
        name = f"h5py.Dataset.{method}"

        def make(original: Any, name: str = name, describe: Any = describe) -> Any:
            return timed(recorder, original, name, KIND_READ_PATH, describe)

        patch(module.Dataset, method, make)
