// Marks tables and figures that are wider than the screen: site.css shows that they scroll, and to which side. They take
// the keyboard's focus, so that arrow keys scroll them.
const mark = (wide) => {
  const hidden = wide.scrollWidth - wide.clientWidth;
  wide.classList.toggle("scrolls", hidden > 1);
  wide.classList.toggle("more-left", wide.scrollLeft > 1);
  wide.classList.toggle("more-right", wide.scrollLeft < hidden - 1);
  wide.tabIndex = hidden > 1 ? 0 : -1;
};
const observer = new ResizeObserver((entries) => entries.forEach((entry) => mark(entry.target.closest(".wide"))));
for (const wide of document.querySelectorAll(".wide")) {
  observer.observe(wide);
  observer.observe(wide.firstElementChild);
  wide.addEventListener("scroll", () => mark(wide), { passive: true });
}
