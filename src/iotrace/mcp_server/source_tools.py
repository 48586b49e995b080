"""The tools on the user's source: the lines that make the loader, and the patch of a fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iotrace.errors import SessionError, UsageError
from iotrace.mcp_server import results as r
from iotrace.mcp_server.answers import code_line, maybe, paged, recorded
from iotrace.mcp_server.places import Places
from iotrace.mcp_server.reports import Reports
from iotrace.mcp_server.results import Tool
from iotrace.patching.patch import Patch, patch_of_fix
from iotrace.session.manifest import read_manifest

_MOST_SOURCE_BYTES = 4 << 20
_ALL = 1 << 20


class Sources:
    """The tools that read the program."""

    def __init__(self, places: Places, reports: Reports) -> None:
        self.places, self.reports = places, reports

    def tools(self) -> list[Tool]:
        """List the tools."""
        says = "Show the lines of the program that make the training loader."
        changes = "Write a unified diff of the user's source that carries out a fix; it changes no file."
        return [
            Tool("loader_source", says, r.AskedSource, r.SourceLines, self.loader_source),
            Tool("patch", changes, r.AskedPatch, r.PatchLines, self.patch),
        ]

    def loader_source(self, asked: r.AskedSource) -> r.SourceLines:
        """Show the user's source around the call that makes the loader."""
        path = self.places.session(asked.session)
        made = self.reports.loader(path)
        if made is None or made.site is None:
            raise SessionError("the line that makes the training loader is not recorded")
        name, _, number = made.site.rpartition(":")
        manifest = read_manifest(path)
        file = self.places.path(str(Path(manifest.cwd) / name))
        if not file.is_file() or file.suffix != ".py" or file.stat().st_size > _MOST_SOURCE_BYTES:
            raise SessionError("the program's file is not there any more, or is no Python")
        lines = file.read_text(errors="replace").split("\n")
        line = int(number)
        first = max(0, line - 1 - asked.around)
        rows = [
            r.SourceLine(line=at, text=code_line(text))
            for at, text in enumerate(lines[first : line + asked.around], first + 1)
        ]

        def make(chosen: list[Any]) -> r.SourceLines:
            return r.SourceLines(
                session=asked.session,
                file=recorded(self.places.relative_name(file)),
                loader_line=line,
                changed_since=file.stat().st_mtime_ns > manifest.started_ns,
                lines=chosen,
            )

        return paged(make, rows, asked.cursor, asked.most_bytes, _ALL)

    def patch(self, asked: r.AskedPatch) -> r.PatchLines:
        """Write the patch of a fix, and apply it to nothing."""
        path = self.places.session(asked.session)
        fixes = self.reports.of(path).verdict.fixes
        if asked.fix > len(fixes):
            raise UsageError(f"the verdict has {len(fixes)} fixes", "verdict lists them")
        fix = fixes[asked.fix - 1]
        patch = patch_of_fix(path, fix, self.reports.loader(path))
        outside = [file for file, _ in patch.lines if not self.places.holds(Path(file).resolve())]
        if outside:
            patch = Patch(why_not="the program's source is outside of the directory that this server shows")
        lines = [code_line(line) for line in (patch.diff or "").split("\n")[:-1]]

        def make(chosen: list[Any]) -> r.PatchLines:
            return r.PatchLines(
                session=asked.session,
                fix=recorded(fix.text),
                proven=False,
                why_not=maybe(patch.why_not),
                command=maybe(patch.command),
                diff=chosen,
            )

        return paged(make, lines, asked.cursor, asked.most_bytes, _ALL)
