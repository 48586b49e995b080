"""The rank as the program's own process group has it: it holds, whatever the environment says."""

from __future__ import annotations

from typing import Any

from iotrace.agent.patching import hide_frame, patch
from iotrace.agent.recording.recorder import Recorder


def hook_distributed(module: Any, recorder: Recorder) -> None:
    """Patch ``init_process_group`` of ``torch.distributed.distributed_c10d``."""

    def make(original: Any) -> Any:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            try:
                recorder.records.append(
                    {
                        "type": "distributed",
                        "rank": module.get_rank(),
                        "world_size": module.get_world_size(),
                        "backend": str(module.get_backend()),
                    }
                )
            except Exception as error:
                recorder.log(f"rank of the process group is not recorded: {error!r}")
            return result

        return init_process_group

    patch(module, "init_process_group", make)
