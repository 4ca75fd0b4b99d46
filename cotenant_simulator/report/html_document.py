"""What all pages for the browser share: one style, readable on a phone too, and tables; nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cotenant.page_style import PAGE_STYLE

_STYLE = (
    PAGE_STYLE
    + """
svg{font:11px system-ui,sans-serif;fill:#333}.grid{stroke:#e4e4e4}table{width:100%}
.legend{margin:0}.key{margin-right:14px;white-space:nowrap}
.key i{display:inline-block;width:14px;height:4px;margin-right:5px;vertical-align:middle}
@media(max-width:600px){svg{font-size:20px}.gantt{overflow-x:auto}.gantt svg{width:760px;font-size:11px}}
"""
)
"""On a phone charts have larger letters; the rows of GPUs leave no room for such, and are moved from side to side."""
_COLUMNS_OF_A_PHONE = 4


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
    body = "".join(f"<tr>{''.join(map(_cell, titles, row))}</tr>" for row in rows)
    is_wide = len(titles) > _COLUMNS_OF_A_PHONE
    return f"<table{' class=wide' if is_wide else ''}><tr>{head}</tr>{body}</table>"


def _cell(title: str, text: str) -> str:
    return f'<td data-title="{escape(title, quote=True)}">{escape(text)}</td>'


def note(text: str) -> str:
    """Return a line in small grey letters."""
    return f"<p class='note'>{escape(text)}</p>"
