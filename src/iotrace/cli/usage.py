"""Wrong usage as a sentence of ours: what is wrong, what is allowed. And completion by the shell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from iotrace.errors import UsageError, replacing, writing

SHELLS = ("bash", "zsh", "fish")
DETECT = "by $SHELL"
_SURE = 0.75  # that one word is another, misspelt: then the others are not listed
_GIVEN = re.compile(r"'(.*)' is not one of ", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments? \((?P<words>.*)\)")


def no_command(name: str, commands: Sequence[str]) -> str:
    """Say that there is no command `name`, and which is meant."""
    near = get_close_matches(name, commands, n=1)
    return f"there is no command {name}" + (f": did you mean {near[0]}?" if near else "")


def either(words: Sequence[object]) -> str:
    """Join `words` for a sentence: ``tb or hta``, ``a, b or c``."""
    texts = [str(word) for word in words]
    return " or ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def describe(error: click.UsageError, command: click.Command) -> str:
    """Say in one sentence what is wrong with the command line of `command`."""
    if isinstance(error, click.NoSuchOption):
        nearest = get_close_matches(error.option_name, error.possibilities or (), n=3)
        near = f": did you mean {either(nearest)}?" if nearest else ""
        if error.option_name == "-o" and any("--html" in param.opts for param in command.params):
            near = ": --html FILE writes a page"  # as other commands have -o for what they write
        return f"there is no option {error.option_name}{near}"
    if isinstance(error, click.MissingParameter):
        return f"{_shown(error.param)} is missing" if error.param is not None else "an argument is missing"
    if isinstance(error, click.BadParameter):
        given = _GIVEN.match(error.message)
        wanted = _wanted(error.param, given[1] if given else "") if error.param is not None else ""
        return wanted or error.message
    if isinstance(error, click.BadOptionUsage):
        return _wrong_value(error.option_name, command)
    extra = _EXTRA.fullmatch(error.message)
    if extra is not None:
        return f"there is one argument too many: {extra['words']}"
    return "the command line cannot be understood"


def _wanted(param: click.Parameter, given: str) -> str:
    """Say which values a parameter takes, where it was `given` another; empty where its type refuses none."""
    kind, name = param.type, _name(param)
    if isinstance(kind, click.Choice):
        nearest = get_close_matches(given, kind.choices, n=1, cutoff=_SURE)
        if nearest:
            return f"there is no {name} {given}: did you mean {nearest[0]}?"
        return f"{name} is {either(kind.choices)}" + (f", not {given}" if given else "")
    if not isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return ""
    what = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    if least is not None and most is not None:
        return f"{name} takes {what} from {least:g} to {most:g}"
    return f"{name} takes {what}" + (f" of at least {least:g}" if least is not None else "")


def _wrong_value(name: str, command: click.Command) -> str:
    option = next((one for one in command.params if name in one.opts), None)
    if isinstance(option, click.Option) and option.is_flag:
        return f"{name} takes no value"
    return f"{name} needs a value" + (f": {_shown(option)}" if option is not None else "")


def _name(param: click.Parameter) -> str:
    """Name an argument by what its help calls it, an option by its longest spelling."""
    if isinstance(param, click.Argument):
        return param.metavar or param.human_readable_name
    return max(param.opts, key=len)


def _shown(param: click.Parameter) -> str:
    """Show a parameter as it is to be typed: ``-o FILE``, ``SESSION``."""
    if isinstance(param, click.Argument):
        return _name(param)
    values = "|".join(map(str, param.type.choices)) if isinstance(param.type, click.Choice) else ""
    return f"{param.opts[0]} {values or param.metavar or 'VALUE'}"


def completion_script(app: click.Command, variable: str, shell: str) -> str:
    """The completion script of `app` for `shell`, which sets `variable` when it asks for completions."""
    kind = get_completion_class(_known(shell))
    assert kind is not None
    return kind(app, {}, "iotrace", variable).source()


def install(app: click.Command, variable: str, shell: str) -> str:
    """Write the script to where `shell` looks for it; returns what to do next."""
    shell = _known(shell)
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    path = {
        "bash": data / "bash-completion/completions/iotrace",
        "zsh": home / ".zfunc/_iotrace",
        "fish": config / "fish/completions/iotrace.fish",
    }[shell]
    wrote = "replaced" if path.exists() else "wrote"
    otherwise = "iotrace --show-completion prints it: save it where your shell finds it"
    with writing(path, otherwise):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, otherwise) as file:
        file.write_text(completion_script(app, variable, shell))
    lines = [f"{wrote} {path}; no other file was changed"]
    if shell == "zsh":
        lines.append("add to ~/.zshrc: fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    else:
        lines.append("open a new shell to use it")
    return "\n".join([*lines, f"to undo: rm {shlex.quote(str(path))}"])


def _known(shell: str) -> str:
    name = Path(os.environ.get("SHELL", "")).name if shell == DETECT else shell
    if name not in SHELLS:
        remedy = "name one: iotrace --install-completion bash"
        raise UsageError(f"completion is for {', '.join(SHELLS)}, not {name or 'an unknown shell'}", remedy)
    return name
