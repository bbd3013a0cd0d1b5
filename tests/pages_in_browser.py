# SPDX-License-Identifier: MIT
"""Pages in headless Chromium, as wide as a phone and a desk, light and dark: what of their text cannot be read."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

_OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync"]
SIZES = {"phone": (390, 844), "desk": (1280, 900)}
SCHEMES = ("light", "dark")
_CHECKS = Path(__file__).with_suffix(".js")


def _browser() -> str:
    found = filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome")))
    return next(found, None) or pytest.fail("needs a browser: apt-get install chromium fonts-dejavu-core")


def dom(text: str, folder: Path) -> str:
    """A page after its scripts have run."""
    folder.mkdir(exist_ok=True)
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    command = [_browser(), *_OPTIONS, f"--user-data-dir={folder / 'browser'}", "--dump-dom", f"file://{file}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def findings(pages: Mapping[str, str], folder: Path) -> dict[tuple[str, str, str], list[str]]:
    """(page, size, scheme) → what is wrong with it there.

    All are frames of one page: a frame has its own width, and its colour scheme is that of its element.
    """
    keys = [(name, size, scheme) for name in pages for size in SIZES for scheme in SCHEMES]
    frames = [f'<iframe width="{SIZES[size][0]}" height="{SIZES[size][1]}" '
              f'style="border:0;color-scheme:{scheme}" srcdoc="{html.escape(_watched(pages[name]))}"></iframe>'
              for name, size, scheme in keys]
    run = """addEventListener("load", () => document.body.dataset.found = JSON.stringify(
        [...document.querySelectorAll("iframe")].map(({contentWindow: view, style}) => {
          const isDark = view.matchMedia("(prefers-color-scheme: dark)").matches;
          return [...isDark === (style.colorScheme === "dark") ? [] : ["scheme: not as asked for"], ...check(view)];
        })));"""
    text = dom(f"<!doctype html><meta charset=utf-8><body><script>{_CHECKS.read_text()}{run}</script>"
               f"{''.join(frames)}</body>", folder)
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', text).group(1)))
    return dict(zip(keys, found, strict=True))


def _watched(page: str) -> str:
    """The page with its canvases watched."""
    return page.replace("<head>", "<head><script>parent.keepCanvasText(window)</script>", 1)


def shown(picture: str, narrow: str) -> str:
    """A page with a picture, and on phones the narrow one, as large as its place lets it be: as Markdown is shown."""
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            'content="width=device-width"><style>:root{color-scheme:light dark}body{margin:16px}'
            "svg{max-width:100%;height:auto}.phone{display:none}"
            "@media(max-width:600px){.desk{display:none}.phone{display:block}}</style></head><body>"
            f'<div class="desk">{picture}</div><div class="phone">{narrow}</div></body></html>')
