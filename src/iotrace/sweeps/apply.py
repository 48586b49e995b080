"""How to type a change: DataLoader's arguments, the command's own words, variables, a diff of the call."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from iotrace.sweeps.call import Source, chain_of, diff
from iotrace.sweeps.grid import CV2_THREADS, LOADER_ARGUMENTS, SHARING, THREADS
from iotrace.sweeps.results import TRANSFORMERS, Origin

_OF_OTHERS = re.compile(r"(?i)(?<![a-z])(val|valid|validation|test|eval|evaluation|predict)(?![a-z])")


def changes(params: Mapping[str, str], command: Sequence[str], origin: Origin | None) -> list[str]:
    """Return the lines to type for `params`, shortest first; `origin` is that of the program's own loader."""
    found = []
    builder = None if origin is None else origin.builder
    arguments = {LOADER_ARGUMENTS[name]: value for name, value in params.items() if name in LOADER_ARGUMENTS}
    if arguments:
        found += _of_loader(arguments, command, origin, builder)
    others = []
    if THREADS in params:
        others.append(f"OMP_NUM_THREADS={params[THREADS]} before the command")
    if CV2_THREADS in params:
        others.append(f"OPENCV_FOR_THREADS_NUM={params[CV2_THREADS]} before the command")
    if SHARING in params:
        others.append(f"torch.multiprocessing.set_sharing_strategy({params[SHARING]!r})")
    return found + [f"and {text}" if arguments else text for text in others]


def _of_loader(
    arguments: Mapping[str, str], command: Sequence[str], origin: Origin | None, builder: str | None
) -> list[str]:
    called = "TrainingArguments" if builder == TRANSFORMERS else "DataLoader"
    prefix = "dataloader_" if builder == TRANSFORMERS else ""
    listed = ", ".join(f"{prefix}{name}={value}" for name, value in arguments.items())
    site = None if origin is None else _shortened(origin.site)
    others = [_shortened(other) or "" for other in origin.others] if origin is not None else []
    sites = " and ".join(filter(None, [site, *others]))
    found = [f"{called}({listed})" + (f" at {sites}" if sites and builder is None else "")]
    own = (
        {LOADER_ARGUMENTS[name]: value for name, value in origin.settings.items()}
        if origin is not None
        else {}
    )
    words = _words(command, arguments, own)
    file, _, number = (site or "").rpartition(":")
    line = int(number) if number.isdigit() else 0
    source = Source(file)
    if builder == TRANSFORMERS and "HfArgumentParser" in source.text:
        for name, value in arguments.items():
            words.setdefault(name, f"--{prefix}{name} {value}")
    if builder == "hydra" and (call := source.call("instantiate", line)) and call.args:
        path = chain_of(call.args[0])
        if len(path) > 1 and source.of_hydra(path[0], line):
            for name, value in arguments.items():
                words.setdefault(name, f"++{'.'.join([*path[1:], name])}={value}")
    call = source.call("DataLoader", line) if builder is None else None
    if call is not None:
        for keyword in call.keywords:
            name, path = str(keyword.arg), chain_of(keyword.value)
            if name not in arguments or name in words or not path:
                continue
            if len(path) > 1 and source.of_hydra(path[0], line):
                words[name] = f"{'.'.join(path[1:])}={arguments[name]}"
            elif spelled := source.options(path[-1]) or _options_in(command, path[-1]):
                words[name] = f"{_as_given(spelled, command)} {arguments[name]}"
    if words:
        found.append(f"by {' '.join(words.values())} in the command")
    rest = {name: value for name, value in arguments.items() if name not in words}
    for each in [site or "", *others] if rest and builder is None else []:
        found += _diff_at(each, rest)
    return found


def _diff_at(site: str, arguments: Mapping[str, str]) -> list[str]:
    """The change of the call at a line, as a diff; empty where it is not a call of DataLoader there."""
    file, _, number = site.rpartition(":")
    source = Source(file)
    call = source.call("DataLoader", int(number) if number.isdigit() else 0)
    return [] if call is None else diff(source.text, call, arguments)


def _shortened(site: str | None) -> str | None:
    """A path as origin from here, where it lies below."""
    here = os.getcwd() + os.sep
    return site[len(here) :] if site and site.startswith(here) else site


def _options_in(command: Sequence[str], dest: str) -> list[str]:
    """The option of this destination in the command's own program."""
    for word in command:
        if word.endswith(".py") and (found := Source(word).options(dest)):
            return found
    return []


def _as_given(spelled: Sequence[str], command: Sequence[str]) -> str:
    """An option as the command has it, or its long name."""
    given = [word for word in spelled if word in command]
    return (given or sorted(spelled, key=len, reverse=True))[0]


def _words(command: Sequence[str], arguments: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The words of the command that name a setting (Hydra's overrides, options), with the new value.

    Only those that have the value that the training loader had; not those of validation.
    """
    found: dict[str, str] = {}
    for at, word in enumerate(command):
        key, equals, value = word.partition("=")
        follows = command[at + 1] if at + 1 < len(command) else ""
        if not equals and not word.startswith("--"):
            continue
        for name, new in arguments.items():
            spelled = name.replace("_", "[-_]").replace("num[-_]", "(num[-_])?")
            if not re.fullmatch(rf"[\w.+\-/]*(?<![a-z]){spelled}[\w.]*", key) or _OF_OTHERS.search(
                key.replace("_", " ")
            ):
                continue
            if (value if equals else follows).lower() == own.get(name, "").lower():
                found[name] = f"{key}={new}" if equals else f"{word} {new}"
    return found
