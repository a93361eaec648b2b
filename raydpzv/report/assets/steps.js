// The slider over a run's updates: reads the packed columns of #data and says what happened in one update.
"use strict";
(() => {
  const { steps } = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id), slider = byId("moment"), number = byId("moment-number");
  const types = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, u8: BigUint64Array, f4: Float32Array };
  const unpacked = ({ type, bytes }) => new types[type](Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)).buffer);
  const plain = (value, digits = 4) => {
    if (value === Infinity) return "∞";
    if (!Number.isFinite(value)) return "–";
    return Number.isInteger(value) || Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
  };
  const records = (count) => `${plain(count)} record${count === 1 ? "" : "s"}`;

  // a run's columns as arrays, made when it is first looked at; at: its updates that are here
  const opened = new Map();
  const open = (about) => {
    if (!opened.has(about)) {
      const found = { about, at: about.at ? unpacked(about.at) : Uint32Array.from({ length: about.last + 1 }, (_, k) => k) };
      for (const [name, column] of Object.entries(about.columns)) {
        found[name] = unpacked(column);
        if (!column.counts) continue;
        let sum = 0;
        found[`${name}Ends`] = Array.from(unpacked(column.counts), (count) => (sum += count));
      }
      if (about.evaluated) Object.assign(found, { evaluated: unpacked(about.evaluated), scores: unpacked(about.scores) });
      opened.set(about, found);
    }
    return opened.get(about);
  };
  const listed = (run, name, k) => (run[name] ? run[name].slice(k ? run[`${name}Ends`][k - 1] : 0, run[`${name}Ends`][k]) : []);
  const some = (shown, all) => (all > shown.length ? `${shown.join(", ")} and ${plain(all - shown.length)} more` : shown.join(", "));
  const scored = (run, value) => (run.about.form === "percent" ? `${(100 * value).toFixed(2)} %` : plain(value, 6));
  // the place of the newest evaluation up to an update, -1 without one
  const newest = (run, update) => (run.evaluated ? run.evaluated.findLastIndex((at) => at <= update) : -1);
  const named = (run, client) => run.about.names[client] ?? `client ${client}`;

  // from which update on, the terms of the ε so far, and whether it is useful
  const termsAt = ({ about }, update) => (about.terms || []).findLast(([first]) => first <= update);

  const facts = (run, k) => {
    const { about } = run, update = run.at[k], found = [], seen = newest(run, update), add = (name, value) => found.push([name, value]);
    if (about.score) add(about.score, seen < 0 ? "–" : `${scored(run, run.scores[seen])} after update ${plain(run.evaluated[seen])}`);
    if (run.clients) {
      const who = Array.from(listed(run, "clients", k));
      add(who.length === 1 ? "client" : "clients", who.length === 1 ? named(run, who[0]) : some(who.map((m) => about.names[m] ?? m), run.served[k]) || "–");
    }
    if (run.moved) add("moved the model by", plain(run.moved[k]));
    const scalars = Array.from(listed(run, "scalars", k), (value) => plain(value));
    add("released", scalars.length ? some(scalars, run.pairs[k]) : "–");
    if (scalars.length) add(run.pairs[k] > 1 ? "step size, first seed" : "step size, seed", `${plain(run.lr ? run.lr[k] : about.lr, 3)}, ${run.seeds[k].toString(16)}`);
    if (run.stale?.some((age) => age)) add("staleness", `${plain(run.stale[k])} updates`);
    if (run.clipped) add("clipped", records(run.clipped[k]));
    if (run.epsilon) add("ε so far", termsAt(run, update)?.[2] === false ? `no useful ε (${plain(run.epsilon[k])})` : plain(run.epsilon[k]));
    return found;
  };

  let run = null, place = 0;
  const show = (k, said = "") => {
    place = k;
    const found = facts(run, k), update = run.at[k];
    [slider.value, number.value] = [k, update];
    slider.setAttribute("aria-valuetext", [`update ${update} of ${run.about.last}`, ...found.map((fact) => fact.join(" "))].join("; "));
    byId("moment-facts").replaceChildren(...found.map(([name, value]) => {
      const box = document.createElement("div"), term = document.createElement("dt"), held = document.createElement("dd");
      [term.textContent, held.textContent] = [name, value];
      box.append(term, held);
      return box;
    }));
    const terms = termsAt(run, update);
    byId("moment-terms").textContent = terms && run.epsilon ? `ε = ${plain(run.epsilon[k])}, ${terms[1]}` : "";
    byId("moment-said").textContent = said;
  };
  // the place of an update, or of the last one here before it
  const placeOf = (update) => Math.max(run.at.findLastIndex((at) => at <= update), 0);
  const go = (k, found, otherwise) => (k < 0 ? show(place, `${otherwise} after update ${plain(run.at[place])}.`) : show(k, found(k)));
  const after = (holds) => run.at.findIndex((_, k) => k > place && holds(k));

  const choose = (about) => {
    run = open(about);
    Object.assign(slider, { max: run.at.length - 1 });
    Object.assign(number, { max: about.last });
    byId("fallen").textContent = about.score || "";
    byId("next-fall").hidden = about.form !== "percent";
    byId("next-clip").hidden = !run.clipped;
    for (const box of [byId("next-stale"), byId("stale-least").parentElement]) box.hidden = !run.stale?.some((age) => age);
    const notes = [`${plain(about.last)} updates.`];
    if (about.held <= about.last) notes.push(`This page has ${plain(about.held)} of them; raydpzv step RUN --at N shows any.`);
    if (about.unmoved) notes.push(`How far an update moved the model is not here: ${about.unmoved}.`);
    if (about.countable && !run.clipped) notes.push("Where a clip bound is not on record; raydpzv step RUN --clip finds it.");
    if (about.withheld) notes.push("Accuracies, clients of rounds and staleness were not published.");
    byId("moment-note").textContent = notes.join(" ");
    show(run.at.length - 1);
  };
  byId("moment-run")?.addEventListener("change", ({ target }) => choose(steps[Number(target.value)]));
  slider.addEventListener("input", () => show(Number(slider.value)));
  number.addEventListener("change", () => show(placeOf(Number(number.value))));
  byId("next-fall").addEventListener("click", () => {
    const fell = run.scores ? run.scores.findIndex((score, k) => k && run.evaluated[k] > run.at[place] && score < run.scores[k - 1]) : -1;
    go(fell < 0 ? -1 : placeOf(run.evaluated[fell]), () => `Accuracy fell from ${scored(run, run.scores[fell - 1])} to ${scored(run, run.scores[fell])}, as evaluated.`, "No evaluation fell");
  });
  byId("next-clip").addEventListener("click", () => go(after((k) => run.clipped[k] && !run.clipped[k - 1] && run.at[k] === run.at[k - 1] + 1), (k) => `The clip began to bind: ${records(run.clipped[k])}.`, "The clip did not begin to bind"));
  byId("next-stale").addEventListener("click", () => {
    const least = Math.max(Number(byId("stale-least").value), 1);
    go(after((k) => run.stale[k] >= least), (k) => `${plain(run.stale[k])} updates old.`, `Nothing was ${plain(least)} updates old`);
  });
  choose(steps[0]);
})();
