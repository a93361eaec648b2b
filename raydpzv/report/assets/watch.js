// A page that is watched loads itself again when its server has another version, and looks as it did. Runs after page.js.
"use strict";
(() => {
  const watched = document.querySelector("meta[name=version]");
  const controls = ["axis", "smooth", "logx", "logy", "group"].map((id) => document.getElementById(id)).filter(Boolean);
  const read = (control) => (control.type === "checkbox" ? control.checked : control.value);
  const usual = (control) => (control.type === "checkbox" ? control.defaultChecked : control.defaultValue ?? control.options[0].value);
  const same = {}, folds = [...document.querySelectorAll("details")].map((fold) => {  // the next page may have more of them
    const name = `${fold.closest("figure")?.querySelector("h2, h3").textContent} ${fold.querySelector("summary").textContent}`;
    same[name] = (same[name] || 0) + 1;
    return [`${name} ${same[name]}`, fold];
  });
  const seen = JSON.parse(sessionStorage.getItem("seen")) || { folds: {}, values: {} };
  for (const [name, fold] of folds) fold.open = seen.folds[name] ?? fold.open;
  for (const control of controls) {
    if (!(control.id in seen.values) || read(control) !== usual(control)) continue;  // one clicked while the page loaded stays
    if (control.type === "checkbox") control.checked = seen.values[control.id];
    else control.value = seen.values[control.id];
    control.dispatchEvent(new Event(control.type === "range" ? "input" : "change"));
  }
  if ("top" in seen) scrollTo(0, seen.top);
  addEventListener("pagehide", () => {  // what is clicked while the next page is made counts
    const values = Object.fromEntries(controls.map((control) => [control.id, read(control)]));
    sessionStorage.setItem("seen", JSON.stringify({ folds: Object.fromEntries(folds.map(([name, fold]) => [name, fold.open])), values, top: scrollY }));
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
