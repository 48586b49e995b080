"""Counting backward passes: a loader whose batches are followed by one is a training loader."""

from __future__ import annotations

from typing import Any

from iotrace.agent.patching import hide_frame, patch

backward_count = 0


def hook_autograd(module: Any) -> None:
    """Patch ``torch.autograd.backward``, which ``Tensor.backward`` calls."""

    def make(original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            global backward_count
            backward_count += 1
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise

        return backward

    patch(module, "backward", make)
