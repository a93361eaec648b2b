// A page that is watched loads itself again when its server has another version, and looks as it did. Runs after page.js.
"use strict";
(() => {
  const watched = document.querySelector("meta[name=version]");
  const folds = [...document.querySelectorAll("details")], controls = ["axis", "smooth", "logx", "logy", "group"].map((id) => document.getElementById(id)).filter(Boolean);
  const seen = JSON.parse(sessionStorage.getItem("seen") || "null");
  if (seen && seen.folds.length === folds.length) {
    folds.forEach((fold, k) => { fold.open = seen.folds[k]; });
    controls.forEach((control) => {
      if (!(control.id in seen.values)) return;
      if (control.type === "checkbox") control.checked = seen.values[control.id];
      else control.value = seen.values[control.id];
      control.dispatchEvent(new Event(control.type === "range" ? "input" : "change"));
    });
    scrollTo(0, seen.top);
  }
  addEventListener("pagehide", () => {  // what is clicked while the next page is made counts
    const values = Object.fromEntries(controls.map((c) => [c.id, c.type === "checkbox" ? c.checked : c.value]));
    sessionStorage.setItem("seen", JSON.stringify({ folds: folds.map((fold) => fold.open), values, top: scrollY }));
  });
  const look = async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      const still = document.hidden || document.querySelector("[data-chart]:hover");  // somebody reads a value
      if (!answer.ok || (await answer.text()) === watched.content || still) return;
    } catch {
      document.querySelector(".facts").textContent += " (no longer watched)";
      clearInterval(timer);
      return;
    }
    clearInterval(timer);  // one that came while the page loads would begin anew
    location.reload();
  };
  const timer = setInterval(look, Math.max(250, performance.now() / 2));  // a page that takes long is made less often
})();
