"""Shell completion: ``--show-completion`` prints the script, ``--install-completion`` stores it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from iotrace.cli import COMPLETION_VARIABLE
from iotrace.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
DETECT = "by $SHELL"


def script_of(app: click.Command, shell: str) -> str:
    """The completion script of `app` for `shell`."""
    kind = get_completion_class(_known(shell))
    assert kind is not None
    return kind(app, {}, "iotrace", COMPLETION_VARIABLE).source()


def install(app: click.Command, shell: str) -> str:
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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script_of(app, shell))
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
