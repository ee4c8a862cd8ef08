"""The style sheet: one palette for light mode, one for dark; readable on a phone and on paper."""

from __future__ import annotations

import base64
import hashlib

# the colours of text, lines and dots have a contrast of 4.5 or more on every background
LIGHT = {
    "page": "#ffffff",
    "panel": "#f3f5f8",
    "text": "#1b1e24",
    "quiet": "#565d69",
    "rule": "#c9ced6",
    "link": "#0b57a4",
    "good": "#0f6a3b",
    "good-panel": "#e8f5ec",
    "bad": "#b0161f",
    "bad-panel": "#fdecec",
    "band": "#cfe0f2",
    "line-0": "#0b5fa5",
    "line-1": "#a63d00",
    "line-2": "#5b3fb0",
    "line-3": "#0f6f5c",
    "line-4": "#a3226b",
    "line-5": "#665200",
    "line-6": "#3f4a5a",
    "line-7": "#8a2f2f",
}
DARK = {
    "page": "#14171c",
    "panel": "#1e232b",
    "text": "#e8eaee",
    "quiet": "#aab2bf",
    "rule": "#434b57",
    "link": "#8cc2ff",
    "good": "#7fd8a2",
    "good-panel": "#14281d",
    "bad": "#ff9b9b",
    "bad-panel": "#351619",
    "band": "#25405c",
    "line-0": "#7cb9f2",
    "line-1": "#f2a56b",
    "line-2": "#c0aaf7",
    "line-3": "#6fd1bb",
    "line-4": "#f291c4",
    "line-5": "#dcc55a",
    "line-6": "#b7c1cf",
    "line-7": "#f0a3a0",
}
LINES = 8  # lines in one picture that can be told apart
_DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 4", "12 4", "1 4", "6 2 1 2 1 2")

_RULES = """
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--text);
  background: var(--page); max-width: 52rem; margin: 0 auto; padding: 1.5rem 1rem 4rem;
  overflow-wrap: anywhere }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; padding-top: .7rem; border-top: 1px solid var(--rule) }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .4rem }
p, ul { margin: .6rem 0 } ul { padding-left: 1.3rem } li { margin: .25rem 0 }
a { color: var(--link) }
.quiet { color: var(--quiet) } .small { font-size: .92rem }
.verdict { padding: .9rem 1.1rem; border-radius: .4rem; border-left: .4rem solid }
.verdict strong { font-size: 1.15rem } .verdict p, .verdict ul { margin: .3rem 0 0 }
.good { color: var(--good); background: var(--good-panel); border-color: var(--good) }
.bad { color: var(--bad); background: var(--bad-panel); border-color: var(--bad) }
p.bad { padding: .3rem .6rem; border-radius: .2rem }
td .bad, li .bad { padding: 0 .3rem; border-radius: .2rem; font-weight: 600 }
dl.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 9rem), 1fr));
  gap: .7rem; margin: 1rem 0 }
dl.facts div { background: var(--panel); border-radius: .4rem; padding: .6rem .8rem }
dl.facts dt { color: var(--quiet); font-size: .85rem } dl.facts dd { margin: 0; font-weight: 600 }
.scroll { overflow-x: auto; margin: .8rem 0; max-width: 100% }
.scroll:focus-visible, summary:focus-visible, a:focus-visible { outline: 2px solid var(--link) }
table { border-collapse: collapse; font-size: .92rem; overflow-wrap: normal; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .4rem .9rem .4rem 0;
  border-bottom: 1px solid var(--rule); font-variant-numeric: tabular-nums; max-width: 24rem;
  overflow-wrap: break-word }
th { font-size: .85rem; color: var(--quiet); font-weight: 600 }
tr.own td, strong.own { font-weight: 600 }
pre { background: var(--panel); border-radius: .4rem; padding: .8rem 1rem; white-space: pre-wrap;
  font: .85rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; margin: .8rem 0 }
code { font: .9em ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--panel);
  padding: .05rem .25rem; border-radius: .2rem } pre code { padding: 0 }
details { margin: .5rem 0 } summary { cursor: pointer; color: var(--link); font-size: .92rem }
details pre { max-height: 24rem; overflow-y: auto }
figure { margin: 1rem 0; break-inside: avoid } figcaption { font-size: .92rem; color: var(--quiet) }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr));
  gap: .5rem 1.5rem; align-items: start }
.grid figure { margin: .5rem 0 }
dl.short { display: grid; grid-template-columns: minmax(5.5rem, max-content) minmax(0, 1fr);
  gap: .35rem 1rem; margin: 1rem 0 } dl.short dt { color: var(--quiet) } dl.short dd { margin: 0 }
.glossary { font-size: .88rem } .glossary dt { font-weight: 600; margin-top: .5rem }
.glossary dd { margin: 0; color: var(--quiet) }
svg { display: block; width: 100%; height: auto; max-width: 29rem; font-size: 12px }
svg text { fill: var(--text) } svg .quiet { fill: var(--quiet) }
svg .axis { stroke: var(--quiet); stroke-width: 1; fill: none }
svg .tick { stroke: var(--rule); stroke-width: .6 } svg .band { fill: var(--band); stroke: none }
svg .ceiling { stroke: var(--bad); stroke-dasharray: 6 4; stroke-width: 1.5; fill: none }
svg text.ceiling { stroke: none; fill: var(--bad) }
svg .plain { stroke: var(--quiet); stroke-dasharray: 4 4; stroke-width: 1.4; fill: none }
"""
_LINE = (
    "svg .line-{i} {{ stroke: var(--line-{i}); stroke-width: 2; fill: none; stroke-dasharray: {dash} }}"
    " svg .dot-{i} {{ fill: var(--line-{i}); stroke: none }}"
    " svg .span-{i} {{ stroke: var(--line-{i}); stroke-width: 2.5; fill: none }}"
    " svg text.key-{i} {{ fill: var(--line-{i}); font-weight: 600 }}\n"
)
_NARROW = """
@media screen and (max-width: 40rem) {
  h1 { font-size: 1.35rem }
  th, td { overflow-wrap: anywhere } table:not(.wide) .whole { overflow-wrap: break-word }
  table.wide thead { position: absolute; left: -99rem }
  table.wide tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--rule) }
  table.wide td { display: block; max-width: none; padding: .1rem 0; border: 0 }
  table.wide td::before { content: attr(data-label) ": "; color: var(--quiet); font-size: .85rem }
}
"""
_BESIDE = """
@media screen and (min-width: 78rem) {
  body { max-width: 74rem; display: grid; grid-template-columns: minmax(0, 1fr) 17rem; gap: 2.5rem }
  .glossary { position: sticky; top: 1rem; align-self: start; max-height: calc(100vh - 2rem);
    overflow-y: auto } .glossary h2 { margin-top: 0; border: 0 }
}
"""
_PRINT = """
@page { size: A4; margin: 16mm }
@media print {
  .summary { break-after: page } .summary h1 { font-size: 16pt } dl.short { font-size: 9.5pt }
  body { font-size: 10.5pt; max-width: none; padding: 0 }
  h2, h3 { break-after: avoid } tr, .verdict, dl.facts div { break-inside: avoid }
  .scroll { overflow: visible } th, td { font-size: 8.5pt }
  .verdict { border: 2px solid } svg { max-width: 12cm } .grid { grid-template-columns: 1fr 1fr }
  .screen, details:not([open]) { display: none }
}
"""


def stylesheet() -> str:
    """Return the whole style sheet. Dark colours are for screens only, because paper is white."""
    lines = "".join(_LINE.format(i=i, dash=dash) for i, dash in enumerate(_DASHES))
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{_root(DARK)}}}\n"
    return f"{_root(LIGHT)}{_RULES}{lines}{dark}{_NARROW}{_BESIDE}{_PRINT}"


def policy(style: str) -> str:
    """Return the security policy for the browser: only this style sheet, nothing is loaded or run."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _root(palette: dict[str, str]) -> str:
    inside = "; ".join(f"--{name}: {value}" for name, value in palette.items())
    return f":root {{ {inside} }}\n"
