"""Build HTML pages. Text is escaped, and a page needs no other files."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import Curves, Rows

STYLE = """
:root{--soft: #5c6370;--box: #f5f6f8;--rule: #dfe2e6;--good: 31 90 153;--bad: 196 86 26}
@media(prefers-color-scheme:dark){html,img{INVERTED}}
*{box-sizing: border-box}html{background: #fff}
body{font: 16px/1.5 Helvetica,Arial,"DejaVu Sans",sans-serif;margin: 0 auto;max-width: 1160px;padding: 12px;color: #222;
overflow-wrap: anywhere}
h1{font-size: 1.4em;line-height: 1.25;margin: .3em 0}
h2{font-size: 1.15em;margin: 1.8em 0 .5em;border-top: 1px solid var(--rule);
padding-top: .6em}h3{font-size: 1em;margin: 1.2em 0 .4em}p{margin: .4em 0}
.soft,figcaption,caption,.facts span{color: var(--soft);font-size: 14px}
.facts{display: flex;flex-wrap: wrap;gap: 6px 26px;margin: .7em 0}.facts b{font-size: 18px;display: block;color: #222}
.charts{display: grid;grid-template-columns: repeat(auto-fill,minmax(min(100%,330px),1fr));gap: 12px 24px;align-items: start}
figure{margin: 0;border: 1px solid var(--rule);border-radius: 6px;padding: 6px;min-width: 0}
figure svg{width: 100%;height: auto;display: block;overflow: hidden}
figure.across{grid-column: 1/-1;overflow-x: auto}.across svg{min-width: 880px}
.wide{overflow-x: auto}table{border-collapse: collapse;font-size: 14px}caption{text-align: left;padding: .2em 0}
th,td{text-align: left;vertical-align: top;padding: 3px 10px 3px 0;border-bottom: 1px solid var(--rule);min-width: 3em}
th{font-weight: 600;overflow-wrap: break-word}td.n,th.n{text-align: right}td.n{white-space: nowrap}
.matrix td,.matrix th{padding: 2px 1px;text-align: center;font-size: 12px;border: 0;overflow-wrap: normal;min-width: 24px}
.matrix th.row{text-align: right;padding-right: 6px}
.right{background: rgb(var(--good)/var(--a))}.wrong{background: rgb(var(--bad)/var(--a))}.deep{color: #fff}
.images{display: grid;grid-template-columns: repeat(auto-fill,minmax(145px,1fr));gap: 10px}
.images img{width: 100%;aspect-ratio: 1;object-fit: contain;display: block}.images img.small{image-rendering: pixelated}
pre{white-space: pre-wrap;font-size: 13px;background: var(--box);padding: 10px;border-radius: 6px;margin: .4em 0}
.note{background: var(--box);border-left: 4px solid rgb(var(--bad));padding: 6px 10px;margin: .7em 0}
@media print{.across svg{min-width: 0}figure,tr{break-inside: avoid}h2{break-after: avoid}table,caption{font-size: 9px}}
""".replace("INVERTED", chart.INVERTED)
Cell = str | tuple[str, str]  # text, or ("n", text) for a right-aligned number


def page(title: str, parts: Iterable[str]) -> str:
    """Return a complete HTML page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def heading(level: int, text: str) -> str:
    """Return a heading of level 1 to 3."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph. `kind` is a CSS class: "soft" (grey), "note" (framed) or ""."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return values in large type with their names below. `pairs` are (value, name)."""
    return f'<div class="facts">{"".join(f"<span><b>{escape(v)}</b>{escape(name)}</span>" for v, name in pairs)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "") -> str:
    """Return a table that scrolls horizontally if it is wider than the page. The first cell of each row is a heading."""
    rows = [tuple(row) for row in rows]
    numbers = {k for row in rows for k, cell in enumerate(row) if isinstance(cell, tuple) and cell[0] == "n"}
    top = "".join(f'<th scope="col"{_class(k in numbers)}>{escape(text)}</th>' for k, text in enumerate(head))
    body = "".join(f"<tr>{''.join(map(_cell, row, range(len(row))))}</tr>" for row in rows)
    caption = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="wide"><table>{caption}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell, place: int) -> str:
    kind, text = cell if isinstance(cell, tuple) else ("", cell)
    if place == 0:
        return f'<th scope="row">{escape(text)}</th>'
    return f"<td{_class(kind == 'n')}>{escape(text)}</td>"


def _class(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def charts(panels: Iterable[Curves | Rows]) -> str:
    """Return framed charts, side by side if they fit. A wide chart has its own line, and scrolls on a narrow screen."""
    return side_by_side(
        f"<figure{' class=across' if panel.wide else ''}>{chart.figure([panel], alone=False)}</figure>" for panel in panels
    )


def side_by_side(parts: Iterable[str]) -> str:
    """Return elements side by side if they fit."""
    return f'<div class="charts">{"".join(parts)}</div>'


def text(content: str) -> str:
    """Return preformatted text."""
    return f"<pre>{escape(content)}</pre>"


def folded(summary: str, content: str) -> str:
    """Return HTML that is hidden until the reader clicks on the summary."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def image(content: bytes, alternative: str, small: bool) -> str:
    """Return an embedded PNG or JPEG image. If `small` is true, browsers enlarge the image without blurring."""
    kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
    data = base64.b64encode(content).decode()
    return f'<img{" class=small" if small else ""} alt="{escape(alternative)}" src="data:image/{kind};base64,{data}">'
