// Airflow shows the console in a frame that may not open pages of Airflow itself.
// The document around the frame follows a link with the attribute data-airflow.
document.addEventListener("click", event => {
  const link = event.target.closest("a[data-airflow]");
  if (!link || window.parent === window) return;
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  outer.click();
});

// Airflow starts the run, with the rights of its user: the console itself changes nothing.
document.addEventListener("click", async event => {
  const button = event.target.closest("button[data-trigger]");
  if (!button) return;
  const answer = document.getElementById("triggered");
  button.disabled = true;
  answer.textContent = "Starting";
  try {
    const body = JSON.stringify({ logical_date: null, conf: JSON.parse(button.dataset.conf) });
    const headers = { "Content-Type": "application/json" };
    const response = await fetch(button.dataset.trigger, { method: "POST", headers, body });
    if (response.ok) {
      const run = await response.json();
      location.assign(`${button.dataset.runs}/${encodeURIComponent(run.dag_run_id)}`);
      return;
    }
    answer.textContent = `Airflow refused the run: ${response.status} ${await response.text()}`;
  } catch (error) {
    answer.textContent = `Airflow did not answer: ${error}`;
  }
  button.disabled = false;
});

// The console refreshes only the page that is open.
document.addEventListener("htmx:configRequest", event => {
  const { verb, path } = event.detail;
  const decoded = address => decodeURIComponent(new URL(address, location.href).pathname);
  const same = decoded(path) === decoded(location.href);
  if (verb !== "get" || !same || document.hidden) event.preventDefault();
});

// A refresh replaces the content. Open details, scrolled tables and the focus stay as they are.
const inContent = selector => [...document.querySelectorAll(`#content ${selector}`)];
const titleOf = details => details.querySelector("summary").textContent;
// The windows of a bar move as records arrive, so a link of a bar is found again by its position.
const kindOf = element => [
  element.tagName,
  element instanceof SVGElement ? "" : element.getAttribute("href"),
  element.matches("summary") ? element.textContent : "",
].join();
const ofKind = kind => inContent("*").filter(element => kindOf(element) === kind);
let kept;
document.addEventListener("htmx:beforeSwap", () => {
  const focused = document.activeElement.closest("#content *");
  const kind = focused && kindOf(focused);
  kept = {
    open: new Map(inContent("details").map(details => [titleOf(details), details.open])),
    left: inContent(".scroll").map(table => table.scrollLeft),
    focus: focused && { kind, number: ofKind(kind).indexOf(focused) },
  };
});
document.addEventListener("htmx:afterSwap", () => {
  for (const details of inContent("details")) {
    details.open = kept.open.get(titleOf(details)) ?? details.open;
  }
  inContent(".scroll").forEach((table, number) => { table.scrollLeft = kept.left[number] ?? 0; });
  if (!kept.focus) return;
  const same = ofKind(kept.focus.kind)[kept.focus.number];
  (same ?? document.getElementById("content")).focus({ preventScroll: true });
});

// A page that could not be refreshed shows a note, so that old values do not look current.
let refreshedAt = new Date();
document.addEventListener("htmx:afterSwap", () => { refreshedAt = new Date(); });
for (const name of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(name, () => {
    const content = document.getElementById("content");
    content.classList.add("stale");
    let note = document.getElementById("not-refreshed");
    if (!note) {
      note = document.createElement("p");
      note.id = "not-refreshed";
      note.className = "problem";
      note.setAttribute("role", "alert");
      content.prepend(note);
    }
    note.textContent = `Not refreshed since ${refreshedAt.toLocaleTimeString()}. Load the page again.`;
  });
}
