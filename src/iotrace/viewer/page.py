"""The small page whose button opens Perfetto and hands the trace to it, from tab to tab."""

from __future__ import annotations

import html
import json

PERFETTO = "https://ui.perfetto.dev"

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · iotrace</title>
<style nonce="{nonce}">
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ max-width: 34rem; margin: 12vh auto; padding: 0 1rem; }}
h1 {{ font-size: 1.25rem; overflow-wrap: anywhere; }}
button {{ font: inherit; font-weight: 600; padding: .6rem 1.2rem; cursor: pointer; }}
</style>
<h1>{title}</h1>
<p>{what}</p>
<p><button id="open" autofocus>Open in Perfetto</button></p>
<p id="said" role="status">The trace goes from this tab to Perfetto's tab. It is not uploaded.</p>
<noscript><p>The button needs JavaScript. Without it, open the file itself in {perfetto}.</p></noscript>
<script nonce="{nonce}">
"use strict";
const given = {given};
const said = document.getElementById("said");
const say = (text) => {{ said.textContent = text; }};
document.getElementById("open").addEventListener("click", () => {{
  const tab = window.open(given.page + "/" + given.fragment);
  if (!tab) {{ say("The browser blocked the new tab. Allow it for this page, then try again."); return; }}
  say("Waiting for Perfetto …");
  const loaded = fetch("trace").then((answer) => {{
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    return answer.arrayBuffer();
  }});
  let tries = 0;
  const done = () => {{ clearInterval(timer); window.removeEventListener("message", listen); }};
  const timer = setInterval(() => {{
    tries += 1;
    if (tab.closed) {{ done(); say("Perfetto's tab was closed."); return; }}
    if (tries === given.patience) say("Perfetto does not answer. Without a network: iotrace open --offline");
    tab.postMessage("PING", given.page);
  }}, 250);
  const listen = (event) => {{
    if (event.source !== tab || event.origin !== given.page || event.data !== "PONG") return;
    done();
    loaded.then((buffer) => {{
      const perfetto = {{ buffer, title: given.title, fileName: given.fileName }};
      tab.postMessage({{ perfetto }}, given.page, [buffer]);
      say("Perfetto has the trace.");
    }}).catch((error) => say("No trace came (" + error.message + "). Does iotrace open still run?"));
  }};
  window.addEventListener("message", listen);
}});
</script>
</html>
"""
_PATIENCE = 60  # tries, of a quarter of a second


def page(title: str, what: str, file_name: str, fragment: str, nonce: str) -> bytes:
    """Return the page; its one script and style are known by `nonce`."""
    given = {
        "page": PERFETTO,
        "fragment": fragment,
        "title": title,
        "fileName": file_name,
        "patience": _PATIENCE,
    }
    text = _PAGE.format(
        title=html.escape(title),
        what=html.escape(what),
        perfetto=PERFETTO,
        nonce=nonce,
        given=json.dumps(given).replace("<", "\\u003c"),
    )
    return text.encode(errors="replace")
