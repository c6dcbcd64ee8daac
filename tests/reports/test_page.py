"""The page in a real browser: light, dark, and on a phone. Skipped where there is no Chromium."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.synthetic_run import correct, make_eval_run, make_reinforce_run, row, write_lines

from kernrl.reports.page import render_report
from kernrl.reports.run_files import read_run

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")]

PHONE_PX = 360

WIDTHS_PX = (390, 768, 1280)
"""Of a phone, a tablet and a screen."""

HEIGHT_PX = 1600

PHONES = ("eval", "trained", "several", "long")
LOOKS = [*(("several", px) for px in WIDTHS_PX), *((name, PHONE_PX) for name in PHONES), ("eval", 1280), ("long", 390)]
"""Pages and widths that are looked at."""

SCHEME = {"light": "--blink-settings=preferredColorScheme=1", "dark": "--blink-settings=preferredColorScheme=0"}

TEXTS = ["body", ".lead", ".note", ".tile b", ".tile small", ".facts li", ".chip.good", ".chip.bad", "thead th", ".legend li",
         ".chart .tick", ".chart .label", ".chart .value", "pre.source code", "pre.source .k", "pre.source .c1"]  # fmt: skip

LOOK = """
function look(page) {
  const root = page.documentElement;
  page.querySelectorAll('details').forEach(d => d.open = true);
  function ground(e) {
    const c = page.defaultView.getComputedStyle(e).backgroundColor;
    return c.startsWith('rgba') && c.endsWith(', 0)') && e.parentElement ? ground(e.parentElement) : c;
  }
  const texts = %s.map(s => page.querySelector(s)).filter(e => e).map(e => {
    const style = page.defaultView.getComputedStyle(e);
    return [e.className.baseVal ?? (e.className || e.tagName), e.closest('svg') ? style.fill : style.color, ground(e)];
  });
  return {
    client: root.clientWidth, scroll: root.scrollWidth, texts,
    cut: [...page.querySelectorAll('.scroll, pre')].filter(e => e.scrollWidth > e.clientWidth + 1).length,
    short: [...page.querySelectorAll('.scroll')].filter(e => e.scrollHeight > e.clientHeight + 1).length,
    charts: [...page.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width),
  };
}
onload = () => document.querySelector('output').textContent = JSON.stringify(
  [...document.querySelectorAll('iframe')].map(frame => look(frame.contentDocument)));
"""

Seen = dict[str, Any]
"""What the browser made of a page: its widths, its charts, and the colours of texts on their ground."""


class Browser:
    """Pages at several widths, looked at in one start of Chromium for each colour scheme: that is what takes the time."""

    def __init__(self, pages: dict[str, Path], folder: Path) -> None:
        self._pages, self._folder = pages, folder
        self._seen: dict[str, dict[tuple[str, int], Seen]] = {}

    def look(self, scheme: str, name: str, width_px: int) -> Seen:
        return self._looked(scheme)[name, width_px]

    def picture(self, scheme: str) -> Path:
        """The page of several runs at `WIDTHS_PX`, side by side."""
        self._looked(scheme)
        return self._image(scheme)

    def _image(self, scheme: str) -> Path:
        return self._folder / f"page-{scheme}.png"

    def _looked(self, scheme: str) -> dict[tuple[str, int], Seen]:
        if scheme not in self._seen:
            # a headless window is never as narrow as a phone, but a frame is
            size = f"width:%dpx;height:{HEIGHT_PX}px;border:0"
            frames = [f'<iframe src="{self._pages[n].as_uri()}" style="{size % width_px}"></iframe>' for n, width_px in LOOKS]
            page = self._folder / f"{scheme}.html"
            page.write_text(
                f'<body style="margin:0;white-space:nowrap">{"".join(frames)}<output></output>'
                f"<script>{LOOK % json.dumps(TEXTS)}</script>"
            )
            arguments = (f"--window-size={sum(WIDTHS_PX)},{HEIGHT_PX}", "--allow-file-access-from-files", SCHEME[scheme])
            command = [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments]
            command += [f"--screenshot={self._image(scheme)}", "--dump-dom", page.as_uri()]
            printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
            found = re.search(r"<output>(.*?)</output>", printed, re.DOTALL)
            assert found is not None
            self._seen[scheme] = dict(zip(LOOKS, json.loads(found[1]), strict=True))
        return self._seen[scheme]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two CSS colours, 1 to 21 (WCAG 2.2, "contrast ratio")."""

    def luminance(colour: str) -> float:
        shares = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of one eval, one training run, several runs, and a run with names and sources as long as they can get."""
    folder = tmp_path_factory.mktemp("pages")
    before, after = make_eval_run(folder / "before"), make_eval_run(folder / "after", skill=0.9, seed=1)
    trained, long = make_reinforce_run(folder / "trained", steps=50), folder / ("long" * 40)
    word = "unbroken" * 40
    rows = [row(correct(word, 2.0), family=word, text=f"x = '{word * 20}'"), row(correct("b", 1.5), family="b")]
    write_lines(long / "samples.jsonl", rows)
    made = {}
    for name, runs in {"eval": [before], "trained": [trained], "several": [before, after, trained], "long": [long]}.items():
        made[name] = folder / f"{name}.html"
        made[name].write_text(render_report([read_run(run) for run in runs]))
    return made


@pytest.fixture(scope="module")
def browser(pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(pages, tmp_path_factory.mktemp("looks"))


@pytest.mark.parametrize("scheme", SCHEME)
def test_every_text_can_be_read_on_its_ground(browser: Browser, scheme: str) -> None:
    seen = browser.look(scheme, "eval", 1280)
    assert len(seen["texts"]) == len(TEXTS)
    faint = {name: ratio for name, ink, ground in seen["texts"] if (ratio := contrast(ink, ground)) < 4.5}
    assert not faint
    body_ground = seen["texts"][0][2]
    assert contrast(body_ground, "rgb(0, 0, 0)" if scheme == "dark" else "rgb(255, 255, 255)") < 1.3


@pytest.mark.parametrize("name", PHONES)
def test_phone_shows_the_page_without_scrolling_sideways(browser: Browser, name: str) -> None:
    seen = browser.look("light", name, PHONE_PX)
    assert seen["client"] == seen["scroll"] == PHONE_PX
    assert len(seen["charts"]) > 3
    assert all(250 < width <= PHONE_PX for width in seen["charts"])  # a chart's text is drawn for 360 px


@pytest.mark.parametrize(("name", "width_px"), [("long", 390), *(("several", px) for px in WIDTHS_PX)], ids=str)
def test_nothing_is_cut(browser: Browser, name: str, width_px: int) -> None:
    seen = browser.look("dark", name, width_px)
    assert (seen["cut"], seen["short"]) == (0, 0)  # what is beyond the edge of a box that scrolls looks as if it were not there


@pytest.mark.parametrize("scheme", SCHEME)
def test_screenshot(browser: Browser, scheme: str) -> None:
    """To be looked at, in pytest's folder."""
    data = browser.picture(scheme).read_bytes()
    assert struct.unpack(">II", data[16:24]) == (sum(WIDTHS_PX), HEIGHT_PX)
    assert len(data) > 40_000 * len(WIDTHS_PX)  # an empty page is a few kilobytes
