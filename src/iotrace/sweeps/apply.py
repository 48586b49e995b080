"""How to type a change: DataLoader's arguments, the command's own words, variables, a diff of the call.

The program's files are read, and edited, by `iotrace.patching`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from iotrace.patching.command import find_words
from iotrace.patching.edits import added, edited, replaced
from iotrace.patching.source import LOADER, Source, split_chain
from iotrace.sweeps.grid import CV2_THREADS, LOADER_ARGUMENTS, POOL_ARGUMENTS, SHARING, THREADS, WORKERS
from iotrace.sweeps.results import TRANSFORMERS, Origin

_LONGEST_LINE = 70  # characters: of a longer one the call alone is shown


def diff(source: Source, call: ast.Call, arguments: Mapping[str, str]) -> list[str]:
    """The call's lines before and after; nothing where the call is no plain one."""
    if any(keyword.arg is None for keyword in call.keywords):
        return []  # settings come by ** from elsewhere
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in arguments}
    missing = {name: value for name, value in arguments.items() if name not in given}
    edits = [replaced(source, value, arguments[str(name)]) for name, value in given.items()]
    if missing:
        edits += added(source, call, missing)
    old, new = (text.splitlines() for text in (source.text, edited(source.text, edits)))
    pairs = list(_changed_lines(old, new))
    if len(pairs) == 2 and call.lineno == call.end_lineno and len(pairs[0][1].strip()) > _LONGEST_LINE:
        start, end = source.span(call)  # the call alone
        before, behind = (
            source.text[:start].splitlines()[-1:],
            source.text[end:].split("\n", 1)[0].rstrip("\r"),
        )
        cut = before[0] if before and start and source.text[start - 1] != "\n" else ""
        pairs = [(kind, line.removeprefix(cut).removesuffix(behind)) for kind, line in pairs]
    return [f"{kind} {line.strip()}" for kind, line in pairs]


def _changed_lines(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines that go, with ``-``, and those that come, with ``+``."""
    for tag, first, last, start, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (("-", line) for line in old[first:last])
            yield from (("+", line) for line in new[start:end])


def changes(params: Mapping[str, str], command: Sequence[str], origin: Origin | None) -> list[str]:
    """Return the lines to type for `params`, shortest first; `origin` is that of the program's own loader."""
    texts = []
    builder = None if origin is None else origin.builder
    arguments = {LOADER_ARGUMENTS[name]: value for name, value in params.items() if name in LOADER_ARGUMENTS}
    if arguments:
        texts += _of_loader(arguments, command, origin, builder)
    others = []
    if THREADS in params:
        others.append(f"OMP_NUM_THREADS={params[THREADS]} before the command")
    if CV2_THREADS in params:
        others.append(f"OPENCV_FOR_THREADS_NUM={params[CV2_THREADS]} before the command")
    if SHARING in params:
        others.append(f"torch.multiprocessing.set_sharing_strategy({params[SHARING]!r})")
    return texts + [f"and {text}" if arguments else text for text in others]


def _of_loader(
    arguments: Mapping[str, str], command: Sequence[str], origin: Origin | None, builder: str | None
) -> list[str]:
    if origin is not None and origin.by_hand and {*arguments} == {LOADER_ARGUMENTS[WORKERS]}:
        (value,) = arguments.values()
        return [f"set {' and '.join(origin.by_hand)} to {value}, by hand"]
    if origin is not None and origin.pool and {*arguments} == {LOADER_ARGUMENTS[WORKERS]}:
        return [f"{origin.pool}({POOL_ARGUMENTS[origin.pool]}={value})" for value in arguments.values()]
    called = "TrainingArguments" if builder == TRANSFORMERS else "DataLoader"
    prefix = "dataloader_" if builder == TRANSFORMERS else ""
    listed = ", ".join(f"{prefix}{name}={value}" for name, value in arguments.items())
    site = None if origin is None else _shortened(origin.site)
    others = [_shortened(other) or "" for other in origin.others] if origin is not None else []
    sites = " and ".join(filter(None, [site, *others]))
    texts = [f"{called}({listed})" + (f" at {sites}" if sites and builder is None else "")]
    own = (
        {LOADER_ARGUMENTS[name]: value for name, value in origin.settings.items()}
        if origin is not None
        else {}
    )
    words = find_words(command, arguments, own)
    file, _, number = (site or "").rpartition(":")
    line = int(number) if number.isdigit() else 0
    source = Source(file)
    if builder == TRANSFORMERS and "HfArgumentParser" in source.text:
        for name, value in arguments.items():
            words.setdefault(name, f"--{prefix}{name} {value}")
    if builder == "hydra" and (call := source.call("instantiate", line)) and call.args:
        path = split_chain(call.args[0])
        if len(path) > 1 and source.of_hydra(path[0], line):
            for name, value in arguments.items():
                words.setdefault(name, f"++{'.'.join([*path[1:], name])}={value}")
    call = source.call(LOADER, line) if builder is None else None
    if call is not None:
        for keyword in call.keywords:
            name, path = str(keyword.arg), split_chain(keyword.value)
            if name not in arguments or name in words or not path:
                continue
            if len(path) > 1 and source.of_hydra(path[0], line):
                words[name] = f"{'.'.join(path[1:])}={arguments[name]}"
            elif spelled := source.options(path[-1]) or _options_in(command, path[-1]):
                words[name] = f"{_as_given(spelled, command)} {arguments[name]}"
    if words:
        texts.append(f"by {' '.join(words.values())} in the command")
    rest = {name: value for name, value in arguments.items() if name not in words}
    for each in [site or "", *others] if rest and builder is None else []:
        texts += _diff_at(each, rest)
    return texts


def _diff_at(site: str, arguments: Mapping[str, str]) -> list[str]:
    """The change of the call at a line, as a diff; empty where it is not a call of DataLoader there."""
    file, _, number = site.rpartition(":")
    source = Source(file)
    call = source.call(LOADER, int(number) if number.isdigit() else 0)
    return [] if call is None else diff(source, call, arguments)


def _shortened(site: str | None) -> str | None:
    """A path as origin from here, where it lies below."""
    here = os.getcwd() + os.sep
    return site[len(here) :] if site and site.startswith(here) else site


def _options_in(command: Sequence[str], dest: str) -> list[str]:
    """The option of this destination in the command's own program."""
    for word in command:
        if word.endswith(".py") and (options := Source(word).options(dest)):
            return options
    return []


def _as_given(spelled: Sequence[str], command: Sequence[str]) -> str:
    """An option as the command has it, or its long name."""
    given = [word for word in spelled if word in command]
    return (given or sorted(spelled, key=len, reverse=True))[0]
