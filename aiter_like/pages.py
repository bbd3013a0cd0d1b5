# SPDX-License-Identifier: MIT
"""The design that all pages and pictures share: colours, light and dark, type, tables, and the frame of a page.

Read by the profiler's, the trace's and the tuner's pages, and by the plot of measured figures.
"""

from __future__ import annotations

import html

COLOURS = """:root {
  color-scheme: light dark;
  --bg: #ffffff; --fg: #1d2329; --dim: #5d6873; --line: #dfe3e8; --card: #f6f7f9; --hover: #eaf1fb;
  --accent: #2463ab; --warn: #a8561a; --good: #237a4b; --bad: #b3372f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #15181c; --fg: #e2e6ea; --dim: #98a2ad; --line: #30363d; --card: #1d2126; --hover: #24303f;
    --accent: #6da7ea; --warn: #e3a468; --good: #6cc492; --bad: #ef8b82;
  }
}
"""
"""Colours of text and lines can be read on --bg, --card and --hover; an SVG takes them as a page does."""

FONT = 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif'
_MONO = 'ui-monospace, "SF Mono", "DejaVu Sans Mono", monospace'
_STYLE = f"""{COLOURS}* {{ box-sizing: border-box }}
html {{ -webkit-text-size-adjust: 100%; text-size-adjust: 100% }}
body {{ margin: 0 auto; padding: 1.2rem 1.6rem 5rem; max-width: 1760px; background: var(--bg); color: var(--fg);
  font: 14.5px/1.45 {FONT} }}
h1 {{ font-size: 1.2rem; margin: .5rem 0 .1rem; overflow-wrap: anywhere; font-weight: 650 }}
h2 {{ font-size: 1.05rem; margin: 2.2rem 0 .5rem; font-weight: 650 }}
h3 {{ font-size: .92rem; margin: 1rem 0 .45rem; font-weight: 600; color: var(--dim) }}
p {{ margin: .2rem 0 .6rem }}
code, .mono, table {{ font-family: {_MONO} }}
.note, .dim {{ color: var(--dim) }} .note b {{ color: var(--warn) }} .small {{ font-size: .86rem }}
.up, .bad {{ color: var(--bad) }} .down {{ color: var(--good) }}
a, .link {{ color: var(--accent); text-decoration: none; cursor: pointer }}
a:hover, .link:hover {{ text-decoration: underline }}
summary {{ cursor: pointer; color: var(--dim); padding: .2rem 0 }}
table {{ border-collapse: collapse; font-size: 12.5px; line-height: 1.4 }}
th {{ text-align: right; font-weight: 600; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  color: var(--dim); white-space: nowrap }}
td {{ padding: .12rem .6rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums;
  border-bottom: 1px solid color-mix(in srgb, var(--line) 45%, transparent) }}
td.l, th.l {{ text-align: left }}
td.code {{ white-space: pre-wrap; overflow-wrap: anywhere; min-width: 22rem }}
.wide {{ overflow-x: auto; margin: .3rem 0 }} .wide > svg {{ display: block }}
.term {{ text-decoration: underline dotted color-mix(in srgb, currentColor 45%, transparent);
  text-underline-offset: 3px; cursor: help }}
svg text {{ fill: var(--fg); font: 12px {FONT} }} svg text.dim {{ fill: var(--dim) }}
figure {{ margin: .8rem 0 }} figcaption {{ color: var(--dim); font-size: .86rem }}
svg .grid {{ stroke: var(--line); stroke-width: 1 }} svg .axis {{ stroke: var(--dim); fill: none }}
@media (max-width: 700px) {{
  body {{ padding: .8rem .8rem 3rem }}
  td.code {{ white-space: pre; min-width: 0 }}
}}
"""


def page(title: str, body: str, style: str = "", script: str = "") -> str:
    """One HTML file that loads nothing; `style` is what only this page needs."""
    run = f'\n<script>\n"use strict";\n{script}</script>' if script else ""
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" '
            f'content="width=device-width, initial-scale=1"/>\n<title>{html.escape(title)}</title>\n'
            f"<style>\n{_STYLE}{style}</style></head><body>\n{body}{run}\n</body></html>\n")
