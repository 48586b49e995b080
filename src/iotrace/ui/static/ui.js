"use strict";
(() => {
  // The list follows what is typed: the address stays one that can be sent to somebody.
  const filter = document.getElementById("filter");
  if (filter) {
    let timer = 0, asked = 0;
    const ticks = () => [...document.querySelectorAll("#compare input:checked")];
    const look = () => {
      const button = document.querySelector("#compare button");
      if (button) button.disabled = ticks().length !== 2;
    };
    const show = async () => {
      const number = ++asked;
      const query = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value));
      const answer = await fetch("/?" + query);
      if (!answer.ok || number !== asked) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.getElementById("rows").replaceWith(document.adoptNode(page.getElementById("rows")));
      history.replaceState(null, "", "/?" + query);
      look();
    };
    filter.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(show, 120); });
    filter.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); show(); });
    document.addEventListener("change", look);
    // Who comes back from a terminal sees what has begun or ended meanwhile; what is ticked stays.
    window.addEventListener("focus", () => { if (!ticks().length) show(); });
    look();
  }

  // A run that goes on: what the server sends is shown as it comes, and at the end the report.
  const live = document.getElementById("live");
  if (live) {
    let events = null, seconds = "";
    // What somebody has selected, to copy it, stays until that is over.
    const chosen = () => !getSelection().isCollapsed && live.contains(getSelection().anchorNode);
    const pulse = () => {
      const place = document.getElementById("pulse");
      if (place && !chosen()) place.innerHTML = seconds;
    };
    const begin = () => {
      events = new EventSource(live.dataset.events);
      events.addEventListener("look", (event) => {
        if (chosen()) return;
        const focused = live.contains(document.activeElement) && document.activeElement.closest("details, .scroll")?.id;
        const open = [...live.querySelectorAll("details[open]")].map((each) => each.id);
        const scrolled = [...live.querySelectorAll(".scroll")].map((each) => [each.id, each.scrollLeft]);
        live.innerHTML = event.data;
        open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
        scrolled.forEach(([id, left]) => { const each = document.getElementById(id); if (each) each.scrollLeft = left; });
        if (focused) document.querySelector(`#${focused} > summary, #${focused}.scroll`)?.focus({ preventScroll: true });
        pulse();
      });
      events.addEventListener("pulse", (event) => { seconds = event.data; pulse(); });
      events.addEventListener("over", () => { events.close(); location.reload(); });
    };
    // A tab that nobody sees asks for nothing.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) events.close();
      else if (events.readyState === EventSource.CLOSED) begin();
    });
    begin();
  }
})();
