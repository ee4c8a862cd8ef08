"""Looks at every page of the built site in one Chromium: what is cut, what fails, what is said.

Also says whether the site is that of the present files.

The pages come from a server in this process, so that a script of one page can load all others into
frames, make the frames as wide as a desktop and as a phone, and send back what it measured.
"""

from __future__ import annotations

import functools
import json
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
SITE = DOCS / "_build/html"
WIDTHS = (1280, 390)
MEASURE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><script>
const pages = PAGES, widths = WIDTHS, found = {};
const drawn = frame => new Promise(done => frame.contentWindow.requestAnimationFrame(done));
const loaded = (frame, page) => new Promise(done => {
  frame.onload = done;
  frame.src = "/" + page;
});
function cut(frame) {
  const root = frame.contentDocument.documentElement, view = frame.contentWindow;
  const scrolls = element => {
    for (let e = element; e && e !== frame.contentDocument.body; e = e.parentElement)
      if (["auto", "scroll"].includes(view.getComputedStyle(e).overflowX)
          || view.getComputedStyle(e).position === "fixed") return true;
    return false;
  };
  const out = [...frame.contentDocument.querySelectorAll("main *")].filter(element => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && box.right > root.clientWidth + 1 && !scrolls(element);
  }).map(element => element.tagName + " " + element.textContent.trim().slice(0, 40));
  return [root.scrollWidth - root.clientWidth, ...out.slice(0, 3)];
}
async function look(frame, page) {
  const result = {};
  frame.width = widths[0];
  await loaded(frame, page);
  const view = frame.contentWindow, all = query => frame.contentDocument.querySelectorAll(query);
  if (view.MathJax?.startup) await view.MathJax.startup.promise;
  result.formulas = all(".math:not(.highlight)").length - all("mjx-container").length;
  result["wrong formulas"] = all("mjx-merror, [data-mml-node=merror]").length;
  result.pictures = [...all("img")].filter(i => i.complete && !i.naturalWidth).map(i => i.src);
  result["no copy"] = all("div.highlight").length > 0 && !all("button.copybtn").length;
  for (const width of widths) {
    frame.width = width;
    await drawn(frame);
    result[width] = cut(frame);
  }
  found[page] = result;
}
async function worker() {
  const frame = document.body.appendChild(document.createElement("iframe"));
  frame.height = 800;
  while (pages.length) await look(frame, pages.shift());
}
window.onload = async () => {
  await Promise.all(Array.from({length: 4}, worker));
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
};
</script><body>"""


def is_built_from(*folders: Path) -> bool:
    """Return whether the site was built after every file of some folders was last changed."""
    index = SITE / "searchindex.js"  # the last file that is written, and only if no page failed
    made = {"_build", "generated", "__pycache__"}
    paths = (path for folder in folders for path in folder.rglob("*") if not made & {*path.parts})
    newest = max(path.stat().st_mtime for path in paths if path.is_file())
    return index.exists() and index.stat().st_mtime > newest


class _Handler(SimpleHTTPRequestHandler):
    """Serves the site, the page that measures it, and extra pages; takes what was found."""

    def __init__(self, *arguments: Any, extra: dict[str, str], take: Any, **options: Any) -> None:
        self.extra, self.take = extra, take
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        text = self.extra.get(self.path.lstrip("/"))
        if text is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=3600")  # scripts are read and compiled once
        super().end_headers()

    def do_POST(self) -> None:
        self.take(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


def look(
    browser: str, site: Path, pages: list[str], profile: Path, extra: dict[str, str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return what was measured on each page, and the lines of the console."""
    arrived = threading.Event()
    bodies: list[bytes] = []

    def take(body: bytes) -> None:
        bodies.append(body)
        arrived.set()

    measure = MEASURE.replace("PAGES", json.dumps([*pages, *extra])).replace(
        "WIDTHS", json.dumps(WIDTHS)
    )
    handler = functools.partial(
        _Handler, directory=str(site), extra={"measure": measure, **extra}, take=take
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += ["--no-first-run", "--enable-logging=stderr", "--v=0", "--window-size=1400,900"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # no other host
    command += ["--remote-debugging-port=0", f"--user-data-dir={profile}"]
    said = profile.with_suffix(".log")
    with said.open("wb") as log:
        process = subprocess.Popen(
            [*command, f"http://127.0.0.1:{server.server_port}/measure"],
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        try:
            assert arrived.wait(300), "Chromium sent nothing back"
        finally:
            process.terminate()
            process.wait()
            server.shutdown()
            server.server_close()
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    return json.loads(bodies[0]), [line for line in lines if ":CONSOLE" in line]
