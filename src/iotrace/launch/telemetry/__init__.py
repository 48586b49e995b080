"""The sidecar: a process that samples the traced command's processes, the host and the GPUs."""

Record = dict[str, object]  # a line of its ``records.jsonl``, as session/names.py describes them
