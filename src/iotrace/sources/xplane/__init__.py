"""Profiles of JAX and TensorFlow (``.xplane.pb``), as the JSON that torch.profiler writes."""

XPLANE = ".xplane.pb"  # ends their names


def is_xspace(head: bytes) -> bool:
    """Whether a file that begins with `head` is an XSpace: a plane first, which begins with its id or name.

    A tag of these is a control character that no JSON has.
    """
    if head[:1] != b"\x0a":
        return False
    size = next((index for index in range(1, min(len(head), 11)) if head[index] < 128), 0)
    return bool(size) and head[size + 1 : size + 2] in (b"\x08", b"\x12")
