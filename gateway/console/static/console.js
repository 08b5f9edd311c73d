// The pages work without this. It refreshes what is shown, draws charts, takes
// keys, remembers the theme and copies text. It never turns text into markup:
// what it fetches are whole pages of this console, whose elements are compared
// with those that are shown.
"use strict";
(() => {
  const $ = (what, within = document) => within.querySelector(what);
  const $$ = (what, within = document) => [...within.querySelectorAll(what)];
  const store = (name, value) => { document.cookie = `${name}=${value}; path=/console; max-age=31536000; samesite=strict`; };

  // Theme: what the system says, until somebody chooses.
  const root = document.documentElement;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  $("[data-theme-toggle]").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    store("pulse_theme", root.dataset.theme);
    draw(true);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));

  // Live: every two seconds the page is fetched again and what differs is
  // changed in place. Whoever is about to do something is left alone.
  const every = 2000, slowest = 30000;
  const toggle = $("[data-live-toggle]");
  let paused = sessionStorage.getItem("paused") === "yes", wait = every, timer = 0;
  const busy = () => document.hidden
    || $$("details.act[open], dialog[open]").length > 0
    || $$("[name=id]:checked").length > 0
    || (document.activeElement && document.activeElement.matches("main input:not([type=checkbox]), main textarea, main select"))
    || String(getSelection()) !== "";

  const lost = (why) => {
    const bar = $(".lost");
    bar.hidden = !why;
    if (why) $("span", bar).textContent = why;
  };

  async function refresh() {
    if (!$("main[data-live]") || paused) return;
    if (!busy()) {
      try {
        const answer = await fetch(location.href, { headers: { "X-Pulse-Refresh": "1" }, cache: "no-store", signal: AbortSignal.timeout(15000) });
        if (answer.status === 401) { // signed out elsewhere, or the token is over: to the sign-in and back
          location.reload();
          return;
        }
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const next = $("main", page);
        if (!next) throw new Error("no page");
        if (!busy() && !paused) {
          $$(".notice[role=status]").forEach((n) => next.prepend(n.cloneNode(true)));
          morph($("main"), next);
          morph($(".menu"), $(".menu", page));
          document.title = page.title;
          draw(false);
          mark();
        }
        lost(""); wait = every;
      } catch {
        lost("the node does not answer");
        wait = Math.min(wait * 2, slowest);
      }
    }
    show();
    timer = setTimeout(refresh, wait);
  }

  function morph(from, to) {
    Idiomorph.morph(from, to, {
      morphStyle: "outerHTML", ignoreActiveValue: true,
      callbacks: {
        beforeNodeMorphed: (a) => !(a.classList && a.classList.contains("plot")),
        beforeNodeRemoved: (a) => !(a.closest && a.closest(".plot")),
        // A detail that somebody has opened stays open.
        beforeAttributeUpdated: (name, node) => !(name === "open" && node.matches("details")),
      },
    });
  }

  function show() {
    if (!toggle) return;
    toggle.setAttribute("aria-pressed", String(!paused));
    toggle.classList.toggle("held", !paused && busy());
    $("span", toggle).textContent = paused ? "Paused" : busy() ? "Held" : "Live";
  }
  function pause() {
    if (!toggle) return;
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "yes" : "no");
    clearTimeout(timer);
    wait = every;
    show();
    refresh();
  }
  if (toggle) {
    toggle.addEventListener("click", pause);
    show();
    timer = setTimeout(refresh, wait);
  }

  // Charts.
  let plots = [];
  const colour = (name) => getComputedStyle(probe(name)).color;
  const probes = {};
  function probe(name) {
    if (!probes[name]) {
      probes[name] = document.createElement("i");
      probes[name].style.color = `var(--${name})`;
      probes[name].hidden = true;
      document.body.append(probes[name]);
    }
    return probes[name];
  }
  const span = (ms) => ms >= 60000 ? `${+(ms / 60000).toFixed(1)} min` : ms >= 1000 ? `${+(ms / 1000).toFixed(1)} s` : `${+ms.toFixed(1)} ms`;
  const clock = (s, fine) => new Date(s * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: fine ? "2-digit" : undefined });
  const kinds = {
    rate: { series: [["submitted", "busy"], ["succeeded", "good"], ["failed", "bad"]], unit: (v) => `${+v.toFixed(1)}/s` },
    backlog: { series: [["waiting", "warn"], ["active", "busy"]], unit: (v) => v.toLocaleString("en").replaceAll(",", "\u202f") },
    pickup: { series: [["p99", "warn"], ["p50", "busy"]], unit: span },
  };
  function draw(anew) {
    const source = $("[data-points]");
    if (!source) { plots = []; return; }
    const points = JSON.parse(source.dataset.points);
    if (points.at.length === 0) { // nothing is counted yet: an empty quarter of an hour
      const now = Math.floor(Date.now() / 1000);
      for (const name of Object.keys(points)) points[name] = [null, null];
      points.at = [now - 900, now];
    }
    if (anew) { plots.forEach((p) => p.plot.destroy()); plots = []; }
    for (const figure of $$("[data-chart]")) {
      const kind = kinds[figure.dataset.chart], box = $(".plot", figure);
      const data = [points.at, ...kind.series.map(([name]) => points[name] ?? [])];
      const old = plots.find((p) => p.box === box);
      if (old) { old.plot.setData(data); continue; }
      const grid = { stroke: colour("line"), width: 1 }, ink = colour("dim");
      const axis = { stroke: ink, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const plot = new uPlot({
        width: box.clientWidth, height: box.clientHeight, cursor: { sync: { key: "overview" }, drag: { x: false, y: false }, points: { size: 5 } },
        legend: { show: false }, padding: [8, 6, 0, 0],
        scales: { y: { range: (u, low, high) => [0, Math.max(high ?? 0, figure.dataset.chart === "pickup" ? 10 : 1) * 1.1] } },
        axes: [{ ...axis, size: 24, space: 60, values: (u, at) => at.map((s, i) => clock(s, at.length > 1 && at[1] - at[0] < 60)) },
          { ...axis, size: 58, space: 30, values: (u, at) => at.map(kind.unit) }],
        series: [{}, ...kind.series.map(([name, hue], i) => ({
          label: name, stroke: colour(hue), width: 1.6, spanGaps: false,
          points: { show: figure.dataset.chart === "pickup", size: 3, width: 0, fill: colour(hue) },
          fill: i === 0 ? colour(hue).replace(/^rgb\((.*)\)$/, "rgba($1, .10)") : undefined,
        }))],
        hooks: { setCursor: [(u) => {
          const at = u.cursor.idx, legend = $(".legend", figure);
          legend.title = at == null ? "" : kind.series.map(([name], i) => `${name} ${u.data[i + 1][at] == null ? "–" : kind.unit(u.data[i + 1][at])}`).join(", ");
        }] },
      }, data, box);
      plots.push({ box, plot });
    }
  }
  new ResizeObserver(() => plots.forEach(({ box, plot }) => plot.setSize({ width: box.clientWidth, height: box.clientHeight }))).observe($("main"));
  draw(true);

  // Lists: j and k walk, Enter opens, x selects.
  let at = "";
  const rows = () => $$("[data-row]");
  const current = () => rows().find((r, i) => (r.id || String(i)) === at);
  function mark() { rows().forEach((r, i) => r.classList.toggle("at", at !== "" && (r.id || String(i)) === at)); count(); }
  function walk(by) {
    const all = rows();
    if (!all.length) return;
    const from = all.indexOf(current());
    const to = Math.max(0, Math.min(all.length - 1, from < 0 ? 0 : from + by));
    at = all[to].id || String(to);
    mark();
    all[to].scrollIntoView({ block: "nearest" });
  }
  function count() {
    const bar = $("[data-selected]"), n = $$("[name=id]:checked").length;
    $$("[data-count]").forEach((b) => { b.textContent = n; });
    if (bar) {
      bar.hidden = n === 0;
      $("b", bar).textContent = n;
    }
    show();
  }
  document.addEventListener("change", (e) => {
    if (e.target.matches("[data-all]")) $$("[name=id]").forEach((box) => { box.checked = e.target.checked; });
    if (e.target.matches("[data-auto] select, [data-auto] [type=checkbox], [data-auto] [type=datetime-local]")) e.target.form.requestSubmit();
    count();
  });
  // Empty fields would only make addresses long.
  document.addEventListener("submit", (e) => {
    if (e.target.method === "get") $$("input, select", e.target).forEach((f) => { if (f.value === "" && f.name) f.disabled = true; });
  });
  addEventListener("pageshow", () => $$("form[method=get] :disabled").forEach((f) => { f.disabled = false; }));
  document.addEventListener("click", (e) => {
    const copy = e.target.closest("[data-copy]");
    if (copy) {
      const text = copy.dataset.copy || $(copy.dataset.copyFrom).textContent;
      navigator.clipboard.writeText(text).then(() => { copy.textContent = "Copied"; }, () => { copy.textContent = "Not allowed"; });
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    }
    $$("details.act[open]").forEach((d) => { if (!d.contains(e.target)) d.open = false; });
  });

  // Keys.
  let went = 0;
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "Escape") {
      $$("details.act[open]").forEach((d) => { d.open = false; $("summary", d).focus(); });
      if (document.activeElement.matches("input, textarea, select")) document.activeElement.blur();
      return;
    }
    if (e.target.matches("input:not([type=checkbox]), textarea, select")) return;
    if (went && Date.now() - went < 1500) {
      went = 0;
      const to = $$(".menu [data-key]").find((a) => a.dataset.key === e.key);
      if (to) { e.preventDefault(); location.href = to.href; }
      return;
    }
    const act = {
      g: () => { went = Date.now(); },
      "/": () => $(".find input").focus(),
      j: () => walk(1), k: () => walk(-1),
      x: () => { const box = current() && $("[name=id]", current()); if (box) { box.checked = !box.checked; count(); } },
      Enter: () => { const a = current() && $("a", current()); if (a && document.activeElement === document.body) location.href = a.href; else return false; },
      p: pause,
      "?": () => $("#help").showModal(),
    }[e.key];
    if (act && act() !== false) e.preventDefault();
  });
  $("[data-help]").addEventListener("click", () => $("#help").showModal());
  count();
})();
