"use strict";
// Without this script the page lacks the filter, the copy buttons and, if it is long, its compressed figures and tables.
const filter = document.getElementById("filter");
const shows = (element, dataset, epsilon) => {
  const own = element.dataset.epsilons ?? element.dataset.epsilon;
  const data = !dataset || !element.dataset.dataset || element.dataset.dataset === dataset;
  return data && (!epsilon || !own || own.split(" ").includes(epsilon));
};
const choose = () => {
  const {dataset, epsilon} = Object.fromEntries(new FormData(filter));
  const articles = document.querySelectorAll("article");
  document.querySelectorAll(".variant, .variant tbody tr").forEach((e) => { e.hidden = !shows(e, dataset, epsilon); });
  articles.forEach((e) => { e.hidden = !e.querySelector(".variant:not([hidden])"); });
  // Hide a claim with all artifacts that show it, and a link with its target.
  const dead = (link) => document.getElementById(decodeURIComponent(link.hash.slice(1)))?.closest("[hidden]") != null;
  const links = (e) => [...e.querySelectorAll('a[href^="#"]')];
  document.querySelectorAll(".claims tbody tr").forEach((e) => { e.hidden = links(e).length > 0 && links(e).every(dead); });
  document.querySelectorAll("nav li, .decided li, .findings li, .matrix tbody tr").forEach((e) => { e.hidden = links(e).some(dead); });
  document.querySelectorAll(".shown a").forEach((e) => { e.hidden = dead(e); });
  const shown = document.querySelectorAll("article:not([hidden])").length;
  filter.querySelector("output").textContent = `${shown} of ${articles.length} figures and tables`;
};
filter.addEventListener("change", choose);
filter.addEventListener("submit", (event) => event.preventDefault());
filter.hidden = false;
choose();

// A long page holds its figures and tables compressed, until a reader comes near, or prints.
const unpack = async (packed) => {
  packed.classList.remove("packed");
  const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  packed.outerHTML = await new Response(plain).text();
  choose();
};
const near = new IntersectionObserver((seen) => {
  seen.filter((e) => e.isIntersecting).flatMap((e) => [...e.target.querySelectorAll(".packed")]).forEach(unpack);
}, {rootMargin: "1500px"});
document.querySelectorAll(".packed").forEach((packed) => near.observe(packed.parentElement));
addEventListener("beforeprint", () => document.querySelectorAll(".packed").forEach(unpack));

document.querySelectorAll(".command").forEach((command) => {
  const code = command.querySelector("code");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {  // not permitted: select it instead
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
  command.append(button);
});
