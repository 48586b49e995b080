"""The sidecar: a process beside the traced command that samples its processes, the host and the GPUs."""

Record = dict[str, object]  # a line of its ``records.jsonl``, as session/names.py describes them
