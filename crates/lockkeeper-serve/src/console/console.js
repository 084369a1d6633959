// Keeps a page live: when the server says that something changed, the page is asked for again and its live part replaced.
"use strict";

const login = document.getElementById("login");
if (login && location.hash.startsWith("#token=")) {
  // The part behind the # was not sent to the server, and is not left in the address.
  document.getElementById("token").value = decodeURIComponent(location.hash.slice(7));
  history.replaceState(null, "", location.pathname);
  login.submit();
}

const link = document.getElementById("link");
let live = document.getElementById("live");
let loadedAt = performance.now();
let busy = false;
let again = false;

function say(text, off) {
  if (!link || (link.textContent === text)) return;
  link.textContent = text;
  link.className = off ? "off" : "";
}

function span(ms) {
  if (ms <= 0) return "0s";
  if (ms < 1000) return `${Math.floor(ms)}ms`;
  let seconds = Math.floor(ms / 1000);
  const parts = [];
  for (const [size, word] of [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]]) {
    if (size <= seconds) parts.push(`${Math.floor(seconds / size)}${word}`);
    seconds %= size;
  }
  return parts.join(" ");
}

function tick() {
  const passed = performance.now() - loadedAt;
  for (const it of document.querySelectorAll("[data-for]")) it.textContent = span(Number(it.dataset.for) + passed);
  for (const it of document.querySelectorAll("[data-left]")) {
    const left = Number(it.dataset.left) - passed;
    it.textContent = span(left < 1000 ? Math.max(0, left) : left);
    it.classList.toggle("short", left < Number(it.dataset.short));
  }
}

async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.status === 401) { location.reload(); return; }
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    if (!fresh) return;
    const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    live.replaceWith(document.adoptNode(fresh));
    live = fresh;
    loadedAt = performance.now();
    if (focused) for (const it of live.querySelectorAll("a")) if (it.getAttribute("href") === focused) { it.focus(); break; }
    tick();
  } catch { say("no connection", true); } finally {
    busy = false;
    if (again) { again = false; refresh(); }
  }
}

function listen() {
  let query = location.search;
  if (location.pathname.startsWith("/locks/")) query = "?name=" + location.pathname.slice("/locks/".length);
  const events = new EventSource("/events" + query);
  events.addEventListener("open", () => say("live"));
  events.addEventListener("changed", () => { say("live"); refresh(); });
  events.addEventListener("error", () => {
    say("no connection", true);
    // A server that refused is not asked again by the browser.
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  });
}

function breakDialog(button) {
  const { name, fence, who, valid } = button.dataset;
  const make = (kind, text) => { const it = document.createElement(kind); it.textContent = text; return it; };
  const dialog = document.createElement("dialog");
  const typed = document.createElement("input");
  typed.type = "text"; typed.id = "typed"; typed.autocomplete = "off";
  const label = make("label", "Type the name of the lock to break it"); label.htmlFor = "typed";
  const told = make("p", ""); told.setAttribute("role", "status");
  const menu = document.createElement("menu");
  const cancel = make("button", "Cancel"), sure = make("button", "Break");
  sure.className = "danger"; sure.disabled = true;
  cancel.addEventListener("click", () => dialog.close());
  typed.addEventListener("input", () => { sure.disabled = typed.value !== name; });
  typed.addEventListener("keydown", (it) => { if (it.key === "Enter" && !sure.disabled) sure.click(); });
  sure.addEventListener("click", async () => {
    sure.disabled = true;
    const answer = await fetch("/v1/break/" + encodeURIComponent(name), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ name: typed.value, fence }),
    });
    if (answer.ok) { dialog.close(); refresh(); } else { told.textContent = (await answer.json()).message; told.className = "bad"; }
  });
  menu.append(cancel, sure);
  dialog.append(
    make("h2", "Break this lock?"),
    make("p", `${who} holds it with the fence ${fence}. It may go on working until it notices, at the latest in ${valid}: until then two may work, unless fences are checked.`),
    label, typed, told, menu);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  typed.focus();
}

// Pages that show more than locks are not told of every change: they ask now and then.
const PATIENT = ["/hot", "/rooms", "/two-phase"];

if (live) {
  if (PATIENT.includes(location.pathname)) setInterval(refresh, 5000);
  // The doctor is not asked again and again.
  if (location.pathname !== "/doctor") listen();
  setInterval(tick, 500);
  document.addEventListener("click", (it) => { const button = it.target.closest("button.break"); if (button) breakDialog(button); });
  document.addEventListener("keydown", (it) => {
    const search = document.getElementById("q");
    if (it.key === "/" && search && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) { it.preventDefault(); search.focus(); }
  });
}
