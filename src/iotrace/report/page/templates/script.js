"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const ms = (value) => value.toFixed(!value || value >= 5 ? 1 : value < 0.5 ? 3 : 2) + " ms";
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - width - 8)) + "px";
    tip.style.top = (y - height - 14 < 8 ? y + 18 : y - height - 14) + "px";
  };
  const hide = () => { tip.hidden = true; };

  // Tables: a click on a heading sorts, the largest figure first.
  for (const table of document.querySelectorAll("table[data-sort]")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (head.classList.contains("wide")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const numeric = head.classList.contains("n");
      const value = (row) => {
        const cell = row.cells[column];
        const text = cell.dataset.v ?? cell.textContent.trim();
        if (!numeric) return text;
        const number = parseFloat(text);
        return Number.isNaN(number) ? null : number;
      };
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const down = now ? now === "ascending" : numeric;
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].map((row) => [value(row), row]);
        rows.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null); // what is unknown comes last
          const order = numeric ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
          return down ? -order : order;
        });
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  // Above what is cut: where the rest of it is.
  for (const box of document.querySelectorAll(".scroll, pre")) {
    const hint = document.createElement("p");
    hint.className = "note over";
    hint.setAttribute("aria-hidden", "true");
    const look = () => {
      const right = box.scrollWidth > box.clientWidth + 1, down = box.scrollHeight > box.clientHeight + 1;
      hint.hidden = !right && !down;
      hint.textContent = (right ? "→ " : "") + (down ? "↓ " : "") + "scroll";
    };
    box.before(hint);
    new ResizeObserver(look).observe(box);
    look();
  }

  // The strip: what a bar is, under the pointer or by the arrow keys.
  const steps = data.columns && data.columns.steps;
  for (const chart of document.querySelectorAll("[data-strip]")) {
    if (!steps) break;
    const count = steps.step_ms.length, cursor = chart.querySelector("[data-cursor]");
    let at = -1;
    const describe = (i) => {
      const last = Math.min(steps.first[i] + steps.bin, steps.steps) - 1;
      const lines = [steps.bin > 1 ? `steps ${steps.first[i]} to ${last}: mean ${ms(steps.step_ms[i])}`
        : `step ${steps.first[i]}: ${ms(steps.step_ms[i])}`];
      if (steps.wait_ms) {
        lines.push(`waits for data ${ms(steps.wait_ms[i])}`);
        Object.entries(steps.causes_ms).map(([name, values]) => [values[i], name])
          .filter(([value]) => value >= 0.05).sort((a, b) => b[0] - a[0])
          .forEach(([value, name]) => lines.push(`  ${name} ${ms(value)}`));
      }
      if (steps.bin > 1) lines.push(`longest: step ${steps.longest[i]}, ${ms(steps.longest_ms[i])}`);
      if (!steps.measured[i]) lines.push(steps.bin > 1 ? "not all measured" : "not measured");
      return lines.join("\n");
    };
    const go = (i, x, y) => {
      at = Math.max(0, Math.min(count - 1, i));
      const box = chart.getBoundingClientRect();
      cursor.setAttribute("x", (100 * at / count) + "%");
      cursor.setAttribute("width", (100 / count) + "%");
      show(describe(at), x ?? box.left + box.width * (at + 0.5) / count, y ?? box.top + 40);
    };
    const leave = () => { hide(); cursor.setAttribute("width", "0"); };
    const point = (event) => {
      const box = chart.getBoundingClientRect();
      go(Math.floor(count * (event.clientX - box.left) / box.width), event.clientX, event.clientY);
    };
    // Where a server has the timeline, too: a finger only asks what a bar is.
    const open = () => {
      if (chart.dataset.timeline && at >= 0) location.href = `${chart.dataset.timeline}&around=${steps.numbers[at]}`;
    };
    chart.addEventListener("click", (event) => { if (event.pointerType === "mouse") open(); });
    chart.addEventListener("pointermove", point);
    chart.addEventListener("pointerdown", point);
    chart.addEventListener("pointerleave", leave);
    chart.addEventListener("blur", leave);
    chart.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, Home: -count, End: count }[event.key];
      if (by) { event.preventDefault(); go(at + by); }
      if (event.key === "Escape") leave();
      if (event.key === "Enter") open();
    });
  }

  // Titles of drawn things at once, also on a touch.
  document.addEventListener("pointerover", (event) => {
    const part = event.target.closest && event.target.closest(".tiles svg, .lane svg svg, .waterfall rect");
    const title = part && part.querySelector("title");
    if (title) show(title.textContent, event.clientX, event.clientY);
    else if (!event.target.closest("[data-strip]")) hide();
  });
  document.addEventListener("scroll", hide, { passive: true });

  // Commands can be copied; without a clipboard they are selected.
  for (const code of document.querySelectorAll(".command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.setAttribute("aria-label", "Copy: " + code.textContent);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = document.execCommand("copy") ? "copied" : "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    code.after(button);
  }
})();
