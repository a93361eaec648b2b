// Draws a report's charts from the JSON in #data, and makes its tables sort. Needs uPlot, and nothing of a network.
// Every text of a run becomes a text node: no markup is ever parsed here.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = { axis: Object.keys(data.axes)[0] || "update", smooth: 0, logx: false, logy: false, zoom: null, group: data.groups ? data.groups[0] : "", hidden: new Set() };
  const shown = [];  // what is drawn: objects with draw()
  // ---- small helpers
  const make = (tag, attributes = {}, ...children) => {
    const found = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
    found.append(...children);
    return found;
  };
  const byId = (id) => document.getElementById(id), colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colourOf = (series) => colour(series.colour < 0 ? "--faint" : `--c${series.colour}`);
  const plain = (value, digits = 6) => {
    if (!Number.isFinite(value)) return "–";
    if (Number.isInteger(value) || Math.abs(value) >= 1e6) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(digits)));
  };
  const sized = (value) => {
    if (!Number.isFinite(value)) return "–";
    const power = value >= 1 ? Math.min(Math.floor(Math.log2(value) / 10), 5) : 0;
    return power ? `${plain(value / 1024 ** power, 4)} ${["", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}` : `${plain(value, 4)} B`;
  };
  const forms = { percent: (v) => (Number.isFinite(v) ? `${(100 * v).toFixed(2)} %` : "–"), bytes: sized, number: plain };
  const ticksOf = { percent: (v) => `${plain(100 * v, 4)} %`, bytes: sized, number: (v) => plain(v, 4) };

  // ---- x axes: a curve over updates is found at its run's time, bytes or ε
  const across = (series) => {
    if (state.axis === "update") return series.x;
    const table = data.tables[series.run], known = table[state.axis];
    if (!known) return series.x.map(() => null);
    let at = 0;
    return series.x.map((update) => {
      while (at < table.update.length - 1 && table.update[at + 1] <= update) at++;
      const low = table.update[at], high = table.update[at + 1];
      if (known[at] === null || high === undefined || low >= update) return known[at];
      if (known[at + 1] === null) return known[at];
      return known[at] + ((known[at + 1] - known[at]) * (update - low)) / (high - low);
    });
  };
  const smoothed = (values, weight) => {
    let mean = 0, seen = 0;
    return values.map((v) => {
      if (v === null || !weight) return v;
      [mean, seen] = [weight * mean + (1 - weight) * v, weight * seen + 1 - weight];
      return mean / seen;
    });
  };
  // places of a logarithmic axis: powers of 2 for bytes, else 1, 2 and 5 times powers of 10; at most six, and as many as fit across
  const logPlaces = (form) => ({
    filter: (u, splits) => splits,
    splits: (u, axis, low, high) => {
      const [base, steps] = form === "bytes" ? [2, [1]] : [10, [1, 2, 5]], found = [];
      for (let power = base ** Math.floor(Math.log(low) / Math.log(base)); power <= high; power *= base) found.push(...steps.map((step) => step * power));
      const inside = found.filter((value) => value >= low && value <= high);
      const most = axis ? 6 : Math.max(Math.min(Math.floor(u.bbox.width / devicePixelRatio / 80), 6), 2) || 2;
      return inside.filter((value, k) => k % Math.ceil(inside.length / most) === 0);
    },
  });
  const formAcross = () => (state.axis === "bytes" ? "bytes" : "number");

  // ---- charts of curves and steps
  class Chart {
    constructor(about, figure) {
      this.about = about;
      this.own = about.kind === "steps" || about.kind === "points";
      this.holder = figure.querySelector(".plot");
      this.box = make("div", { class: "draw", tabindex: "0", role: "group", "aria-label": this.spoken() });
      this.at = make("p", { class: "at" });
      this.legend = make("ul", { class: about.series.some((s) => s.low) ? "legend ranges" : "legend", "aria-label": `Curves of ${about.title}` });
      this.holder.append(this.box, this.at, this.legend, this.table());
      this.off = new Set();
      this.buttons = about.series.map((series, i) => this.entry(series, i));
      this.box.addEventListener("keydown", (event) => this.key(event));
    }

    get used() { return this.about.series.map((s, i) => i).filter((i) => !this.outside(this.about.series[i])); }
    outside(series) { return (this.about.kind !== "points" && series.group && state.group && series.group !== "*" && series.group !== state.group) || state.hidden.has(String(series.run)); }

    spoken() {
      const { title, words, form, series } = this.about;
      const ends = series.slice(0, 8).map((s) => {
        const known = s.y.filter((v) => v !== null);
        return known.length ? `${s.name}: from ${forms[form](known[0])} to ${forms[form](known[known.length - 1])}` : "";
      }).filter(Boolean);
      return `Chart of ${title}, ${words}. ${ends.join("; ")}. Arrow keys read the values.`;
    }

    entry(series, i) {
      const [swatch, line] = ["svg", "line"].map((name) => document.createElementNS("http://www.w3.org/2000/svg", name));
      const look = { x1: 0, x2: 24, y1: 5, y2: 5, "stroke-width": 3, "stroke-dasharray": (series.dash || []).join(" ") };
      const set = (element, values) => Object.entries(values).forEach(([name, value]) => element.setAttribute(name, value));
      set(line, { ...look, style: `stroke: var(${series.colour < 0 ? "--faint" : `--c${series.colour}`})` });
      set(swatch, { "aria-hidden": "true", viewBox: "0 0 24 10" });
      swatch.append(line);
      const value = make("output");
      const button = make("button", { type: "button" }, swatch, `${series.name} `, value);
      button.addEventListener("click", (event) => {
        if (event.shiftKey) {
          const lone = this.used.every((k) => k === i || this.off.has(k)) && !this.off.has(i);
          this.off = new Set(lone ? [] : this.about.series.map((s, k) => k).filter((k) => k !== i));
        } else if (!this.off.delete(i)) this.off.add(i);
        this.draw();
      });
      this.legend.append(make("li", {}, button));
      return { item: button.parentElement, button, value };
    }

    table() {
      const folded = make("details", { class: "values" }, make("summary", {}, "Values"));
      folded.addEventListener("toggle", () => {
        while (folded.children.length > 1) folded.lastChild.remove();
        if (folded.open) folded.append(this.valuesTable());
      });
      return folded;
    }

    valuesTable() {
      const { about } = this, body = make("tbody"), form = forms[about.form], most = Math.ceil(400 / Math.max(about.series.length, 1));
      about.series.forEach((series) => {
        const step = Math.max(1, Math.ceil(series.x.length / most)), x = this.own ? series.x : across(series);
        series.x.forEach((_, k) => {
          if (k % step && k !== series.x.length - 1) return;
          body.append(make("tr", {}, make("th", { scope: "row" }, series.name), make("td", {}, this.saidX(x[k], k)), make("td", {}, form(series.y[k]))));
        });
      });
      const heads = ["curve", this.own ? about.over : data.axes[state.axis], about.words].map((head) => make("th", { scope: "col" }, head));
      return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `Values of ${about.title}` },
        make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
    }

    saidX(x) { return this.about.ticks.length ? this.about.ticks[x] ?? "–" : forms[this.own ? this.about.overForm : formAcross()](x); }

    draw() {
      const width = this.box.clientWidth;
      if (!width) return;
      const { about } = this, used = this.used.filter((i) => !this.off.has(i));
      this.buttons.forEach(({ item, button, value }, i) => {
        item.hidden = about.kind === "points" || this.outside(about.series[i]);
        button.setAttribute("aria-pressed", String(!this.off.has(i)));
        value.textContent = "";
      });
      const weight = this.own ? 0 : state.smooth;
      const logx = about.kind === "points" || (!this.own && state.logx), logy = !this.own && state.logy;
      const fit = (values, log) => (log ? values.map((v) => (v > 0 ? v : null)) : values);
      const tables = [], series = [{}], bands = [], from = [null], edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
      for (const i of used) {
        const one = about.series[i], x = this.own ? one.x : across(one);
        const kept = x.map((v, k) => k).filter((k) => x[k] !== null && (!logx || x[k] > 0));
        const pick = (values) => kept.map((k) => values[k]);
        const stroke = colourOf(one), points = one.dash === null || about.kind === "points";
        const columns = [pick(x), fit(smoothed(pick(one.y), weight), logy)];
        const look = { label: one.name, stroke, width: 2, dash: one.dash || [], spanGaps: true, points: { show: points || kept.length < 40, size: points ? 3 : 5 } };
        if (about.kind === "points") Object.assign(look, { width: 1, points: { show: true, size: 9, fill: stroke } });
        else if (one.dash === null) look.paths = () => null;
        if (about.kind === "steps") Object.assign(look, { paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, fill: used.length === 1 ? `${stroke}55` : undefined });
        series.push(look);
        from.push({ i, kept, x });
        if (one.low) {
          columns.push(fit(pick(one.low), logy), fit(pick(one.high), logy));
          bands.push({ series: [series.length + 1, series.length], fill: `${stroke}22` });
          series.push({ ...edge }, { ...edge });
          from.push(null, null);
        }
        tables.push(columns);
      }
      if (this.plot) this.plot.destroy();
      Object.assign(this, { from, used_now: used });
      const ink = colour("--soft"), rule = colour("--rule"), first = this.holder.closest(".first");
      const height = first ? (width < 500 ? 200 : 290) : about.kind === "points" ? 230 : width < 500 ? 150 : 176;
      const marked = (form) => (u, splits) => splits.map((v) => (v === null ? "" : ticksOf[form](v)));
      const formX = this.own ? about.overForm : formAcross();
      const values = about.ticks.length ? (u, splits) => splits.map((v) => (about.ticks[v] ?? "").split(" ")[0]) : marked(formX);
      const axis = { stroke: ink, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18, labelGap: 0 };
      const linked = this.own ? {} : { sync: { key: "across", setSeries: false, scales: ["x", null] } };
      this.plot = new uPlot({
        width, height, series, bands, legend: { show: false },
        scales: { x: { time: false, distr: logx ? 3 : 1, range: (u, low, high) => this.range(low, high) }, y: { distr: logy ? 3 : 1, range: about.kind === "steps" ? (u, low, high) => [0, (high || 1) * 1.05] : undefined } },
        cursor: { ...linked, drag: { x: true, y: false, setScale: false }, dataIdx: (u, s, at, x) => nearest(u, s, at, x), bind: { dblclick: () => () => zoom(null, this) } },
        axes: [{ ...axis, size: 34, space: 80, label: this.own ? about.over : data.axes[state.axis], values, ...(logx && logPlaces(formX)) }, { ...axis, ...(logy && logPlaces(about.form)), size: (u, words) => 24 + 7 * Math.max(3, ...(words || []).map((w) => w.length)), values: marked(about.form) }],
        hooks: {
          setSelect: [(u) => { if (u.select.width > 4) zoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")], this); u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false); }],
          setCursor: [(u) => this.read(u)],
          draw: about.kind === "points" ? [(u) => this.names(u)] : [],
        },
      }, tables.length ? uPlot.join(tables) : [[]], this.box);
    }

    range(low, high) {
      const zoomed = this.own ? this.zoomed : state.zoom;
      if (zoomed) return zoomed;
      if (low === null) return [0, 1];
      if (this.about.kind === "steps") return [low, high + 1];
      if (this.about.kind === "points") return [low / 1.1, high * 1.1];
      return low === high ? [low - 0.5, high + 0.5] : [low, high];
    }

    // words at the points of a chart of points, where they do not lie over others
    names(u) {
      const unit = devicePixelRatio, placed = [];
      u.ctx.save();
      Object.assign(u.ctx, { fillStyle: colour("--ink"), font: `${11 * unit}px system-ui, sans-serif`, textAlign: "left", textBaseline: "middle" });
      for (const { x, y, notes } of this.used_now.map((i) => this.about.series[i])) notes.forEach((note, k) => {
        const [left, top] = [u.valToPos(x[k], "x", true) + 8 * unit, u.valToPos(y[k], "y", true)];
        if (placed.some(([a, b]) => Math.abs(a - left) < 30 * unit && Math.abs(b - top) < 11 * unit)) return;
        placed.push([left, top]);
        u.ctx.fillText(note, left, top);
      });
      u.ctx.restore();
    }

    // writes the values beside the names in the legend; of points, the nearest
    read(u) {
      const { about } = this, form = forms[about.form];
      let [said, close] = ["", Infinity];
      this.from.forEach((source, s) => {
        if (!source) return;
        const { i, x, kept } = source, at = u.cursor.left < 0 ? null : u.cursor.idxs?.[s];
        this.buttons[i].value.textContent = "";
        if (at == null) return;
        const one = about.series[i], k = kept.find((place) => x[place] === u.data[0][at]);
        const value = form(u.data[s][at]), where = `at ${this.saidX(x[k])}`;
        if (about.kind === "points") {
          const far = Math.hypot(u.valToPos(x[k], "x") - u.cursor.left, u.valToPos(one.y[k], "y") - u.cursor.top);
          if (far < close) [close, said] = [far, `${one.name}: ${value} ${where}`];
          return;
        }
        this.buttons[i].value.textContent = value + (one.low ? ` (${form(one.low[k])} to ${form(one.high[k])})` : "");
        said ||= about.ticks.length ? where : `${where} (${this.own ? about.over : data.axes[state.axis]})`;
      });
      this.at.textContent = said;
    }

    key(event) {
      const u = this.plot;
      if (!u || event.target !== this.box) return;
      const span = u.scales.x, x = u.data[0], now = u.cursor.left >= 0 ? u.posToIdx(u.cursor.left) : -1;
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        const to = Math.min(Math.max(now + (event.key === "ArrowRight" ? 1 : -1), 0), x.length - 1);
        u.setCursor({ left: u.valToPos(x[to], "x"), top: 10 });
      } else if (event.key === "+" || event.key === "-") {
        const middle = now >= 0 ? x[now] : (span.min + span.max) / 2, half = ((span.max - span.min) / 2) * (event.key === "+" ? 0.5 : 2);
        zoom([middle - half, middle + half], this);
      } else if (event.key === "Escape") zoom(null, this); else return;
      event.preventDefault();
    }
  }

  // the nearest row of a curve at which it has a value (of other curves' rows it has none)
  const nearest = (u, s, at, x) => {
    const values = u.data[s], xs = u.data[0];
    let [low, high] = [at, at];
    while (low > 0 && values[low] == null) low--;
    while (high < xs.length - 1 && values[high] == null) high++;
    const known = [low, high].filter((k) => values[k] != null);
    return known.length ? known.reduce((a, b) => (Math.abs(xs[a] - x) <= Math.abs(xs[b] - x) ? a : b)) : null;
  };

  const zoom = (range, chart) => {
    if (chart.own) { chart.zoomed = range; chart.draw(); return; }
    state.zoom = range;
    redraw(true);
  };

  // ---- heat maps and timelines, on canvases of their own
  class Picture {
    constructor(about, figure) {
      this.about = about;
      this.holder = figure.querySelector(".plot");
      this.canvas = make("canvas");
      this.seen = make("div", { class: "seen" });
      this.box = make("div", { class: "draw", tabindex: "0", role: "group", "aria-label": this.spoken() }, this.canvas, this.seen);
      this.holder.append(this.box, ...this.below());
      this.view = this.whole = [0, about.kind === "heat" ? about.last : about.end];
      const on = (event, act) => this.box.addEventListener(event, act);
      on("mousemove", (e) => this.over(e.offsetX, e.offsetY));
      on("mouseleave", () => { this.seen.textContent = ""; });
      on("mousedown", (e) => { this.from = e.offsetX; });
      on("mouseup", (e) => {
        const ends = [this.from, e.offsetX].sort((a, b) => a - b);
        if (ends[1] - ends[0] > 4) this.look(...ends.map((x) => this.valueAt(x)));
        this.from = undefined;
      });
      on("dblclick", () => this.look(...this.whole));
      on("keydown", (e) => {
        const [low, high] = this.view, part = (high - low) / 4;
        const to = { "+": [low + part, high - part], "-": [low - 2 * part, high + 2 * part], ArrowLeft: [low - part, high - part], ArrowRight: [low + part, high + part], Escape: this.whole }[e.key];
        if (to) { e.preventDefault(); this.look(...to); }
      });
    }

    look(low, high) {
      const width = Math.min(high - low, this.whole[1]), start = Math.min(Math.max(low, 0), this.whole[1] - width);
      this.view = [start, start + width];
      this.draw();
    }
    valueAt(x) { return this.view[0] + ((x - this.left) / this.wide) * (this.view[1] - this.view[0]); }
    placeOf(value) { return this.left + ((value - this.view[0]) / (this.view[1] - this.view[0])) * this.wide; }

    // sizes the canvas and draws lanes' names and the axis; the subclass fills the lanes
    draw() {
      const width = this.box.clientWidth, { lanes } = this.about;
      if (!width) return;
      const ctx = this.canvas.getContext("2d"), ratio = devicePixelRatio || 1;
      this.step = Math.max(1.5, Math.min(18, 240 / lanes.length));
      this.left = Math.min(110, 14 + 6 * Math.max(...lanes.map((n) => n.length)));
      this.wide = width - this.left - 8;
      const height = Math.max(lanes.length * this.step, 30) + 36;
      Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
      Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
      ctx.scale(ratio, ratio);
      Object.assign(ctx, { font: "11px system-ui, sans-serif", fillStyle: colour("--soft"), textBaseline: "middle" });
      const every = Math.ceil(13 / this.step);
      lanes.forEach((name, k) => { if (k % every === 0) ctx.fillText(name, 0, (k + 0.5) * this.step, this.left - 4); });
      const bottom = lanes.length * this.step;
      ctx.textAlign = "center";
      const parts = this.wide < 320 ? 2 : 4;
      for (let k = 0; k <= parts; k++) {
        const value = this.view[0] + (k / parts) * (this.view[1] - this.view[0]), x = this.placeOf(value);
        ctx.fillText(plain(value, 4), Math.min(Math.max(x, this.left + 8), width - 20), bottom + 10);
      }
      ctx.fillText(this.about.kind === "heat" ? data.axes.update || "updates" : this.about.words, this.left + this.wide / 2, bottom + 26, this.wide);
      ctx.textAlign = "left";
      ctx.save();
      ctx.beginPath();
      ctx.rect(this.left, 0, this.wide, bottom);
      ctx.clip();
      this.fill(ctx);
      ctx.restore();
    }

    over(x, y) {
      const lane = Math.floor(y / this.step);
      this.seen.textContent = x < this.left || lane >= this.about.lanes.length ? "" : this.said(this.valueAt(x), lane);
      Object.assign(this.seen.style, { left: `${Math.min(x + 12, this.box.clientWidth - 180)}px`, top: `${y + 14}px` });
    }
  }

  class Heat extends Picture {
    spoken() {
      const { lanes, mean, spans, words } = this.about;
      const most = lanes.map((name, k) => [name, Math.max(...mean.slice(k * spans, (k + 1) * spans))]).sort((a, b) => b[1] - a[1]).slice(0, 5);
      return `Heat map of ${words} by client and update. Highest: ${most.map(([n, v]) => `${n} ${plain(v, 3)}`).join("; ")}. Plus and minus zoom, arrow keys move.`;
    }

    below() {
      this.most = Math.max(...this.about.mean);
      return [make("p", { class: "at" }, `Faint is 0, full colour ${plain(this.most, 4)}: ${this.about.words}. Empty: not used.`)];
    }

    fill(ctx) {
      const { lanes, spans, last, mean } = this.about, weak = colour("--low"), strong = colour("--high");
      for (let lane = 0; lane < lanes.length; lane++) for (let k = 0; k < spans; k++) {
        const value = mean[lane * spans + k];
        if (value === null) continue;
        const x = this.placeOf((k * last) / spans), to = this.placeOf(((k + 1) * last) / spans);
        for (const [fill, share] of [[weak, 1], [strong, Math.sqrt(value / (this.most || 1))]]) {
          Object.assign(ctx, { fillStyle: fill, globalAlpha: share });
          ctx.fillRect(x, lane * this.step, to - x + 0.5, this.step - (this.step > 5 ? 1 : 0));
        }
      }
    }

    said(value, lane) {
      const { lanes, spans, last, mean } = this.about, k = Math.min(Math.floor((value / last) * spans), spans - 1);
      return `${lanes[lane]}, updates ${plain(Math.floor((k * last) / spans) + 1)} to ${plain(Math.floor(((k + 1) * last) / spans))}: ${plain(mean[lane * spans + k], 4)}`;
    }
  }

  const PHASES = [["work", "--c0"], ["upload", "--c4"], ["serve", "--c2"], ["reply", "--c3"]];
  const NAMES = { work: "woke and worked", upload: "upload under way", serve: "waited and was served", reply: "reply until applied" };

  class Timeline extends Picture {
    spoken() {
      const { lanes, woke, end } = this.about;
      return `Timeline of ${lanes.length} clients: ${woke.length} bars over ${plain(end, 4)} seconds. Plus and minus zoom, arrow keys move, Escape shows the whole run.`;
    }

    below() {
      const entries = [...PHASES.map(([n, c]) => [NAMES[n], c]), ["late", "--c1"]];
      return [make("ul", { class: "legend" }, ...entries.map(([name, c]) => make("li", {}, make("span", { "aria-hidden": "true", style: `color: var(${c})` }, "■ "), name)))];
    }

    fill(ctx) {
      const { lane, woke, late } = this.about, high = Math.max(this.step - 2, 1), [low, end] = this.view;
      const colours = PHASES.map(([, c]) => colour(c)), marked = colour("--c1");
      for (let k = 0; k < woke.length; k++) {
        let from = woke[k];
        if (from > end) continue;
        const y = lane[k] * this.step + 1;
        PHASES.forEach(([name], p) => {
          const to = from + (this.about[name][k] || 0);
          if (to > from && to >= low) {
            const x = this.placeOf(from);
            ctx.fillStyle = colours[p];
            ctx.fillRect(x, y, Math.max(this.placeOf(to) - x, 0.6), high);
          }
          from = to;
        });
        ctx.fillStyle = late[k] ? marked : colours[0];  // a stroke for late trips, and for those that take no time
        if ((late[k] || from === woke[k]) && from >= low) ctx.fillRect(this.placeOf(woke[k]), y, 1.5, high);
      }
    }

    said(value, lane) {
      const { about } = this, near = ((this.view[1] - this.view[0]) / this.wide) * 2;
      for (let k = 0; k < about.woke.length; k++) {
        const end = PHASES.reduce((sum, [name]) => sum + (about[name][k] || 0), about.woke[k]);
        if (about.lane[k] !== lane || value < about.woke[k] - near || value > end + near) continue;
        const many = about.count[k] > 1 ? `${plain(about.count[k])} round trips, ` : "";
        const parts = about.count[k] > 1 ? "" : PHASES.map(([name]) => `; ${NAMES[name]} ${plain(about[name][k], 3)} s`).join("");
        return `${about.lanes[lane]}: ${many}${plain(about.woke[k], 5)} to ${plain(end, 5)} s${about.late[k] ? ", late" : ""}${parts}`;
      }
      return `${about.lanes[lane]}, ${plain(value, 5)} s`;
    }
  }

  // ---- tools of all charts
  const redraw = (linked = false) => shown.filter((one) => !linked || one instanceof Chart).forEach((one) => one.draw());
  const on = (id, event, act) => {
    const control = byId(id);
    if (!control) return;
    act(control);  // it may have been clicked while the page loaded
    control.addEventListener(event, () => { act(control); redraw(true); });
  };
  on("axis", "change", ({ value }) => {
    Object.assign(state, { axis: value, zoom: null });
    for (const caption of document.querySelectorAll(".first figcaption")) caption.hidden = value !== "update";
  });
  on("smooth", "input", (range) => { state.smooth = Number(range.value) / 100; });
  on("logx", "change", (box) => { state.logx = box.checked; });
  on("logy", "change", (box) => { state.logy = box.checked; });
  on("reset", "click", () => { state.zoom = null; });
  on("group", "change", (select) => { state.group = select.value; });

  const kinds = { lines: Chart, steps: Chart, points: Chart, heat: Heat, timeline: Timeline };
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const one = shown.find((s) => s.box === target);
      if (one && one.drawn !== target.clientWidth) { one.drawn = target.clientWidth; one.draw(); }
    }
  });
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const about = data.charts[Number(figure.dataset.chart)];
    shown.push(new kinds[about.kind](about, figure));
    sizes.observe(shown.at(-1).box);
  }
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => redraw());

  // ---- tables: sort by a head, filter by words, hide columns
  const value = ({ dataset, textContent }) => (dataset.value === undefined ? textContent : dataset.value === "" ? NaN : Number(dataset.value));
  const order = (a, b, down) => {
    if (typeof a === "string") return (down ? -1 : 1) * a.localeCompare(b, "en", { numeric: true });
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);  // what is unknown comes last
    return (down ? -1 : 1) * (a < b ? -1 : a > b ? 1 : 0);
  };
  for (const table of document.querySelectorAll("table.sorted")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], rows = [...body.rows];
    heads.forEach((head, k) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        body.append(...rows.sort((a, b) => order(value(a.cells[k]), value(b.cells[k]), down)));
      });
    });
    const search = byId("filter"), columns = byId("columns"), count = byId("count");
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      state.hidden.clear();
      rows.forEach((row) => {
        row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
        if (row.hidden) state.hidden.add(row.dataset.line);
      });
      count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} shown`;
      redraw(true);
    });
    heads.forEach((head, k) => {
      if (!k) return;
      const box = make("input", { type: "checkbox" });
      box.checked = true;
      box.addEventListener("change", () => [head, ...rows.map((row) => row.cells[k])].forEach((cell) => { cell.hidden = !box.checked; }));
      columns.append(make("label", {}, box, ` ${head.textContent}`));
    });
  }

  // ---- copying
  for (const button of document.querySelectorAll("[data-copy]")) {
    const said = button.textContent, source = button.parentElement.querySelector("pre");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected: press Ctrl+C";
      }
      setTimeout(() => { button.textContent = said; }, 2000);
    });
  }
})();
