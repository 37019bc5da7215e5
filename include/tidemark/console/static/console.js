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
