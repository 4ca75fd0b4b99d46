"""The one style of all pages for the browser that cotenant writes: light and dark, readable on a phone."""

from __future__ import annotations

from typing import Final

PAGE_STYLE: Final = """
:root{color-scheme:light dark;--text:#222;--quiet:#666;--line:#e4e4e4;--paper:#fff}
body{font:15px/1.45 system-ui,sans-serif;color:var(--text);background:var(--paper);max-width:860px;margin:24px auto;
padding:0 16px;overflow-wrap:break-word}
h1{font-size:22px;margin-bottom:2px}h2{font-size:17px;margin:28px 0 6px}
svg{width:100%;height:auto;background:#fff}
table{border-collapse:collapse;margin-top:10px;font-size:13px}
th,td{padding:3px 8px;text-align:right;border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left}
.note{color:var(--quiet);font-size:13px;margin:2px 0}
@media(max-width:600px){th,td{padding:3px 5px}
.wide tr:first-child{display:none}.wide,.wide tbody{display:block}
.wide tr{display:block;padding:6px 0;border-bottom:1px solid var(--line)}
.wide td{display:flex;justify-content:space-between;gap:16px;border:0;padding:1px 0}
.wide td::before{content:attr(data-title);color:var(--quiet);text-align:left;flex:none}
.wide td:first-child{font-weight:bold}}
@media(prefers-color-scheme:dark){:root{--text:#e2e2e2;--quiet:#a4a4a4;--line:#3c3c3c;--paper:#161616}
svg,.key i{filter:invert(.91) hue-rotate(180deg)}}
"""
"""Tables of class `wide` have one row per line on a phone, each cell behind its `data-title`.

Pictures are drawn for white paper: in the dark they are inverted, and turned so that their colours stay what they are.
"""
