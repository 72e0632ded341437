// Set every formula that the Markdown left as text; the page loads KaTeX only if it has one.
for (const place of document.querySelectorAll(".arithmatex")) {
  const text = place.textContent.trim(); // \( ... \) in a line, \[ ... \] on its own
  katex.render(text.slice(2, -2), place, { displayMode: text.startsWith("\\["), throwOnError: true });
}
