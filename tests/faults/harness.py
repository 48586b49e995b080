"""Run a program bare and traced, compare the two, and ask the session what was lost."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

import iotrace_command
from iotrace.session.names import METADATA_CALLS, READING_CALLS, WRITING_CALLS
from iotrace.sources.posix_calls import FileSums
from iotrace.sources.session import Session, open_session
from tests.support.runs import in_process, report_of
from tests.support.waiting import eventually

# As a user calls it: the `iotrace` command. `python -m iotrace` sees what lies in the working directory.
RUN = [sys.executable, iotrace_command.__file__, "run"]
LIMIT_S = 240.0

Act = Callable[["Running"], object]


@dataclass(frozen=True)
class Ended:
    """What a program left: its exit code as a shell gives it, its output, the files in its directory."""

    code: int
    stdout: str
    stderr: str
    files: dict[str, bytes]


class Running:
    """A program that runs, bare or under the launcher: what can be done to it from outside."""

    def __init__(
        self, process: subprocess.Popen[bytes], command: list[str], stdout: Path, session: Path
    ) -> None:
        self.process = process  # the launcher, or the bare program
        self.session = session
        self.directory = stdout.parent / "cwd"  # in which the program was started
        self.traced = process.args != command
        self.keyboard = -1  # the terminal's end, where it has one
        self._command, self._stdout = command, stdout

    def when(self, text: str) -> Running:
        """Wait until the program has written `text` to its standard output."""
        eventually(lambda: text in self.said or self.process.poll() is not None)
        return self

    def asleep(self, text: str) -> Running:
        """Wait until the program has written `text`, and sleeps: a signal then meets it in its last line."""
        self.when(text)
        program = psutil.Process(self.pid)
        eventually(lambda: program.status() == psutil.STATUS_SLEEPING)
        return self

    @property
    def said(self) -> str:
        """Its standard output so far."""
        return self._stdout.read_text(errors="surrogateescape")

    @property
    def pid(self) -> int:
        """The program's own pid, not the launcher's."""
        return self.process.pid if not self.traced else eventually(self._program)

    def _program(self) -> int:
        for child in psutil.Process(self.process.pid).children():
            if child.cmdline() == self._command:
                return child.pid
        return 0

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to what the user started: the launcher, or the bare program."""
        os.kill(self.process.pid, number)

    def kill_program(self, number: signal.Signals) -> None:
        """Send a signal to the program itself."""
        os.kill(self.pid, number)

    def kill_group(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def press(self, keys: bytes) -> None:
        """Press keys on its terminal (``terminal=True``)."""
        os.write(self.keyboard, keys)


@dataclass
class Pair:
    """A program's two ends, and the session of the second."""

    bare: Ended
    traced: Ended
    session: Path
    _normal: Sequence[tuple[str, str]] = ()

    def assert_same(self, *, files: bool = True, session: bool = True) -> None:
        """Exit code, output and files (losses to the last bit) are those of the bare run; the session opens.

        The traced run was quiet: its standard error must be equal, too, and the agent have met no error.
        """
        assert self.traced.code == self.bare.code, self.traced.stderr
        assert self.normal(self.traced.stdout) == self.normal(self.bare.stdout), self.traced.stderr
        assert self.normal(self.traced.stderr) == self.normal(self.bare.stderr)
        if files:
            assert self.traced.files == self.bare.files
        assert self.agent_logs() == ""
        if session:
            assert self.report["session"]["exit_code"] == self.bare.code

    def assert_nothing_lost(self) -> None:
        """The session is complete, and says so."""
        assert self.report["session"]["complete"] is True, self.told

    def assert_lost(self, *words: str) -> None:
        """The session is incomplete, and says what is missing: a sentence with each of the words."""
        assert self.report["session"]["complete"] is False
        for word in words:
            assert any(word in sentence for sentence in self.told), self.told

    @property
    def told(self) -> list[str]:
        """What the report says was not captured: what, and why."""
        return [f"{item['what']}: {item['why']}" for item in self.report["not_captured"]]

    @cached_property
    def report(self) -> dict[str, Any]:
        """What ``iotrace report --json`` says of the session."""
        return report_of(self.session)

    def details(self) -> str:
        """All that the report says on a terminal."""
        return in_process("report", str(self.session), "-v").stdout

    @cached_property
    def opened(self) -> Session:
        """The session as the report reads it."""
        return open_session(self.session)

    def calls(self, name: str, file: str = "") -> int:
        """How many POSIX calls of a name the session holds, on files whose path ends with `file`."""
        calls = self.opened.calls
        if calls.sums is not None:
            return self._summed(calls.sums, name, [path.endswith(file) for path in calls.files])
        return sum(
            calls.names[named] == name and calls.files[number].endswith(file)
            for named, number in zip(calls.name.tolist(), calls.file.tolist(), strict=True)
        )

    def _summed(self, sums: FileSums, name: str, wanted: list[bool]) -> int:
        """The recorder's sums: its rows join calls, and lack some."""
        groups = (METADATA_CALLS, READING_CALLS, WRITING_CALLS)
        return sum(
            kinds[groups[group].index(name)]
            for group, file, kinds in zip(
                sums.group.tolist(), sums.file.tolist(), sums.kinds.tolist(), strict=True
            )
            if wanted[file] and name in groups[group]
        )

    def agent_logs(self) -> str:
        """The errors that agents met, if any."""
        return "".join(path.read_text() for path in sorted(self.session.glob("**/agent.log")))

    def normal(self, text: str) -> str:
        """`text` without what differs between any two runs: addresses, and what the row names."""
        for pattern, to in [("0x[0-9a-f]+", "0x"), *self._normal]:
            text = re.sub(pattern, to, text)
        return text


@dataclass
class Trial:
    """A directory in which programs are run, each time in an empty directory of the run's own."""

    directory: Path
    files: dict[str, bytes] = field(default_factory=dict)  # what lies in that directory before the start
    _runs: int = 0

    def both(
        self,
        program: str | Sequence[str],
        *arguments: str,
        act: Act | None = None,
        options: Sequence[str] = (),
        python: Sequence[str] = (),
        normal: Iterable[tuple[str, str]] = (),
        session: Path | None = None,
        **settings: Any,
    ) -> Pair:
        """Run a program bare, then traced with a launcher that is quiet.

        `program` is the text of a Python program, run with the interpreter's options `python`, or a command.
        `act` is called beside each run and does something to it. `options` are those of ``iotrace run``.
        `normal` lists patterns and what they become before outputs are compared. `settings`: see `start`.
        """
        command = self.command(program, *arguments, python=python)
        bare = self.start(command, act=act, **settings)
        session = session or self.directory / f"session-{self._runs}"
        line = [*RUN, "-q", "-o", str(session), "--torch-steps", "off"]
        line += [*options, "--", *command]
        traced = self.start(command, line=line, session=session, act=act, **settings)
        return Pair(bare, traced, session, tuple(normal))

    def pair(self, bare: Ended, traced: Ended, session: Path) -> Pair:
        """Return two ends as a pair, for rows that start their runs themselves."""
        return Pair(bare, traced, session)

    def command(self, program: str | Sequence[str], *arguments: str, python: Sequence[str] = ()) -> list[str]:
        """Return the command that runs a program's text, or the command that is given."""
        if not isinstance(program, str):
            return [*program, *arguments]
        path = self.directory / "program.py"
        path.write_text(program)
        return [sys.executable, *python, str(path), *arguments]

    def start(
        self,
        command: list[str],
        *,
        line: list[str] | None = None,
        session: Path = Path(),
        act: Act | None = None,
        stdin: bytes | int = subprocess.DEVNULL,
        terminal: bool = False,
        prepare: Callable[[], None] | None = None,
        env: dict[str, str] | None = None,
    ) -> Ended:
        """Run `line`, by default the bare `command`, to its end, as the leader of a session of its own.

        Args:
            line: What is started; `command` is the program in it.
            session: Where the run writes its session.
            act: Called once the process has started.
            stdin: What the program reads, or a descriptor.
            terminal: Whether it has a controlling terminal; its streams stay files.
            prepare: Called in the child before the program.
            env: Variables to add; an empty text removes one.
        """
        self._runs += 1
        here = self.directory / f"run-{self._runs}" / "cwd"  # a name of the same length each time
        here.mkdir(parents=True)
        for name, data in self.files.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_bytes(data)
        given: int = stdin if isinstance(stdin, int) else _file_with(here.parent / "stdin", stdin)
        keyboard, end = pty.openpty() if terminal else (-1, -1)
        variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}

        def begin() -> None:
            for number in (
                signal.SIGINT,
                signal.SIGQUIT,
                signal.SIGHUP,
            ):  # ignored by nohup, and behind a shell's &
                signal.signal(number, signal.SIG_DFL)
            if terminal:
                fcntl.ioctl(end, termios.TIOCSCTTY, 0)
            if prepare is not None:
                prepare()

        stdout, stderr = here.parent / "stdout", here.parent / "stderr"
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                line or command,
                cwd=here,
                stdin=end if terminal and given == subprocess.DEVNULL else given,
                stdout=out,
                stderr=err,
                env={name: value for name, value in variables.items() if value},
                start_new_session=True,
                preexec_fn=begin,
            )
        running = Running(process, command, stdout, session)
        running.keyboard = keyboard
        try:
            if act is not None:
                act(running)
            process.wait(LIMIT_S)
        finally:
            _end(process)
            for descriptor in {keyboard, end, given} - {-1, subprocess.DEVNULL, stdin}:
                os.close(descriptor)
        files = {
            str(path.relative_to(here)): path.read_bytes()
            for path in sorted(here.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        code = process.returncode
        shown = [_read(path).replace(str(here), "CWD") for path in (stdout, stderr)]
        return Ended(128 - code if code < 0 else code, *shown, files)


def _file_with(path: Path, data: bytes) -> int:
    """Return a descriptor that reads `data`."""
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY)


def _read(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the run, as after a row that failed: the process and its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
