"""Talk to `iotrace mcp` as an assistant would, and print the exchange for docs/agents.md.

Usage: tools/agent_exchange.py DIR SESSION

SESSION is a session in DIR, where its program is. The first fix of its verdict is tried.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters, stdio_client

_LONGEST = 900  # characters of an answer that are shown


async def _talk(root: Path, session: str) -> None:
    line = ["-m", "iotrace", "mcp", str(root), "--allow-run"]
    started = StdioServerParameters(command=sys.executable, args=line, env=dict(os.environ))
    async with stdio_client(started) as (incoming, outgoing), ClientSession(incoming, outgoing) as client:
        await client.initialize()

        async def ask(tool: str, **arguments: Any) -> Any:
            found = await client.call_tool(tool, arguments)
            text = found.content[0].text
            assert not found.is_error, text
            shown = json.dumps(found.structured_content, ensure_ascii=False)
            cut = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}… ({len(text.encode())} bytes)"
            print(f"> {tool} {json.dumps(arguments)}", *textwrap.wrap(cut, 116), "", sep="\n")
            return found.structured_content

        await ask("list_sessions")
        verdict = await ask("verdict", session=session)
        await ask("explain", rule=verdict["fixes"][0]["rule"])
        await ask("loader_source", session=session, around=2)
        await ask("try_fix", session=session, fix=1, minutes=5)
        number = next((fix["number"] for fix in verdict["fixes"] if fix["settings"]), 1)
        await ask("patch", session=session, fix=number)


if __name__ == "__main__":
    asyncio.run(_talk(Path(sys.argv[1]).resolve(), sys.argv[2]))
