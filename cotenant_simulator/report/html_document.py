"""What all pages for the browser share: one style, readable on a phone too, and tables; nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;max-width:860px;margin:24px auto;padding:0 16px}
h1{font-size:22px;margin-bottom:2px}h2{font-size:17px;margin:28px 0 6px}
svg{width:100%;height:auto;background:#fff;font:11px system-ui,sans-serif;fill:#333}
.grid{stroke:#e4e4e4}table{border-collapse:collapse;margin-top:10px;width:100%;font-size:13px}
th,td{padding:3px 8px;text-align:right;border-bottom:1px solid #e4e4e4}
th:first-child,td:first-child{text-align:left}.note{color:#666;font-size:13px;margin:2px 0}
.legend{margin:0}.key{margin-right:14px;white-space:nowrap}
.key i{display:inline-block;width:14px;height:4px;margin-right:5px;vertical-align:middle}
@media(max-width:600px){table{display:block;overflow-x:auto}th,td{padding:3px 5px}
svg:not([aria-label='GPUs over time']){font-size:20px}}
"""


def document(title: str, parts: Sequence[str]) -> str:
    """Return a whole page.

    Args:
        title: For the browser's tab.
        parts: HTML, in order; texts in it are escaped already.
    """
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><style>{_STYLE}</style>"
    page_title = f"<title>{escape(title)}</title>"
    return f"<!doctype html><html lang='en'><head>{head}{page_title}</head><body>{''.join(parts)}</body></html>\n"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, the first column to the left and figures to the right."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def note(text: str) -> str:
    """Return a line in small grey letters."""
    return f"<p class='note'>{escape(text)}</p>"
