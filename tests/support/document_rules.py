"""Our tidy for documents, as functions: each takes a tree of files and returns complaints, each with its remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.support.repository_rules import Rule, Tree, make_targets

DECISIONS_MAX = 20
DECISION_LINES_MAX = 60
GLOSSARY_TERMS_MAX = 40
PAGE_WORDS_MAX = 2_600
DECISION_WORDS_MAX = 250
DECISION_HEADINGS = ("## Context", "## Decision", "## Consequences")
FIRST_LINE = "This page answers: "
TEXT_SUFFIXES = (".cfg", ".md", ".proto", ".py", ".pyi", ".sh", ".toml", ".yaml", ".yml", "Dockerfile", "Makefile")
# Written by the page that names it, in a copy of the packages.
WRITTEN_BY_PAGES = frozenset({"scheduler_service/policies/narrowest_first.py"})


def documented_commands_exist(tree: Tree) -> list[str]:
    """Every `make X`, script and relative link that a page names is there."""
    targets = set(make_targets(tree))
    complaints = []
    for path in (p for p in tree.paths if p.endswith(".md")):
        text = tree.text(path)
        named = re.findall(r"(?:^ {4}|`|^\$ )make ([a-z][a-z-]*)", text, re.MULTILINE)
        complaints += [f"{path}: make {name} is no target" for name in named if name not in targets]
        folder = PurePosixPath(path).parent
        links = {str(folder / link) for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text)}
        links |= set(re.findall(r"\b(deploy/[\w.-]+\.(?:sh|py))\b", text))
        complaints += [f"{path}: {link} does not exist" for link in sorted(links) if not (tree.root / link).exists()]
    return complaints


def documented_verbs_exist(tree: Tree) -> list[str]:
    """Every `cotenant VERB` that a page names is a verb of the command."""
    source = "cotenant/cli/main.py"
    verbs = set(re.findall(r'^ +"([a-z-]+)": ', tree.text(source), re.MULTILINE)) if source in tree.paths else set()
    return [
        f"{path}: cotenant {name} is no verb"
        for path in tree.paths
        if path.endswith(".md")
        for name in re.findall(r"(?:^ {4}|`|^\$ )cotenant ([a-z][a-z-]*)", tree.text(path), re.MULTILINE)
        if name not in verbs
    ]


def decisions_are_numbered_pages(tree: Tree) -> list[str]:
    """Decisions are numbered without gaps, one page each, at most twenty, with the three headings."""
    paths = sorted(tree.below("docs/decisions", ".md"))
    complaints = [
        f"{path}: expected the number {number:04d}"
        for number, path in enumerate(paths, start=1)
        if not PurePosixPath(path).name.startswith(f"{number:04d}-")
    ]
    if len(paths) > DECISIONS_MAX:
        complaints.append(f"docs/decisions: {len(paths)} records, at most {DECISIONS_MAX}: merge, or move to research")
    for path in paths:
        text = tree.text(path)
        if len(text.splitlines()) > DECISION_LINES_MAX:
            complaints.append(f"{path}: longer than a page ({DECISION_LINES_MAX} lines)")
        complaints += [f"{path}: lacks {heading!r}" for heading in DECISION_HEADINGS if heading not in text]
    return complaints


def decisions_have_a_status_and_a_date(tree: Tree) -> list[str]:
    """Below its title a decision says whether it is accepted or by which number superseded, and its date."""
    paths = tree.below("docs/decisions", ".md")
    numbers = {PurePosixPath(path).name[:4] for path in paths}
    complaints = []
    for path in paths:
        lines = [*tree.text(path).splitlines(), "", "", "", ""]
        status = re.fullmatch(r"Status: (?:accepted|superseded by (\d{4}))", lines[2])
        if not status:
            complaints.append(f"{path}: line 3: say 'Status: accepted' or 'Status: superseded by NUMBER'")
        elif status[1] is not None and status[1] not in numbers:
            complaints.append(f"{path}: superseded by {status[1]}, which does not exist")
        if not re.fullmatch(r"Date: \d{4}-\d{2}-\d{2}", lines[3]):
            complaints.append(f"{path}: line 4: say 'Date: YEAR-MONTH-DAY'")
    return complaints


def pages_say_what_they_answer(tree: Tree) -> list[str]:
    """The first line under a page's title is the question that the page answers."""
    pages = [path for path in tree.below("docs", ".md") if not path.startswith("docs/decisions/")]
    complaints = []
    for path in pages:
        lines = [*tree.text(path).splitlines(), "", "", ""]
        if not lines[0].startswith("# ") or lines[1] or not lines[2].startswith(FIRST_LINE):
            complaints.append(f"{path}: begin with a title, an empty line and '{FIRST_LINE}...'")
    return complaints


def pages_are_short(tree: Tree) -> list[str]:
    """A page that is longer is not read, and a decision is one thought. The lines of a table's frame are no words."""
    counts = {
        path: sum(word.strip("|-#") != "" for word in tree.text(path).split()) for path in tree.below("docs", ".md")
    }
    limits = {path: DECISION_WORDS_MAX if "/decisions/" in path else PAGE_WORDS_MAX for path in counts}
    return [
        f"{path}: {words} words, at most {limits[path]}: cut what is not acted on, or make two pages"
        for path, words in counts.items()
        if words > limits[path]
    ]


def the_index_leads_to_every_page(tree: Tree) -> list[str]:
    """docs/README.md links every page and, as a folder, the decisions."""
    index = "docs/README.md"
    linked = set(re.findall(r"\]\(([^)#]+)", tree.text(index))) if index in tree.paths else set()
    pages = [path.removeprefix("docs/") for path in tree.below("docs", ".md") if path != index]
    return [
        f"{index}: does not lead to {page}"
        for page in pages
        if page not in linked and not (page.startswith("decisions/") and "decisions" in linked)
    ]


def the_glossary_is_short(tree: Tree) -> list[str]:
    """The glossary has at most forty terms, each a row with a meaning and a module."""
    page = "docs/glossary.md"
    rows = re.findall(r"^\| (.+) \|$", tree.text(page), re.MULTILINE)[1:] if page in tree.paths else []
    complaints = [
        f"{page}: {row!r} is no term, meaning and `module.py`" for row in rows if not re.search(r"\.py`$", row)
    ]
    if len(rows) > GLOSSARY_TERMS_MAX:
        complaints.append(f"{page}: {len(rows)} terms, at most {GLOSSARY_TERMS_MAX}")
    return complaints


def named_pages(text: str) -> Iterator[str]:
    """Yield every path below docs, and every number of a decision as the beginning of its path."""
    for path in re.findall(r"(?<![\w/.-])docs/[\w/.-]+", text):
        yield path.rstrip("./")
    for number in re.findall(r"\bdecisions? (?:record )?(\d{1,4})\b", text, re.IGNORECASE):
        yield f"docs/decisions/{int(number):04d}"


def named_pages_exist(tree: Tree) -> list[str]:
    """Pages and decisions that code, tests, protos or other pages name are there."""

    def exists(page: str) -> bool:
        is_number = re.fullmatch(r"docs/decisions/\d{4}", page)
        return any(path == page or path.startswith(f"{page}-" if is_number else f"{page}/") for path in tree.paths)

    return [
        f"{path}: {page} does not exist"
        for path in tree.paths
        if path.endswith(TEXT_SUFFIXES)
        for page in sorted(set(named_pages(tree.text(path))))
        if not exists(page)
    ]


def headings(text: str) -> set[str]:
    """Return the anchors of a page's headings, as a browser makes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links_lead_to_headings(tree: Tree) -> list[str]:
    """The part of a link after `#` is a heading of the page that it leads to."""
    complaints = []
    for path in (p for p in tree.paths if p.endswith(".md")):
        for page, heading in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", tree.text(path)):
            target = tree.root / PurePosixPath(path).parent / page if page else tree.root / path
            if not target.is_file() or heading not in headings(target.read_text(encoding="utf-8")):
                complaints.append(f"{path}: {page}#{heading} is no heading")
    return complaints


def named_modules_exist(tree: Tree) -> list[str]:
    """A file of code that a page names is there: from the root, or by the last parts of its path."""
    endings = {path.split("/", n)[-1] for path in tree.paths for n in range(path.count("/") + 1)}
    named = re.compile(r"`([\w./-]*[\w-]+\.(?:py|toml|sh|proto))`")
    return [
        f"{path}: {module} does not exist"
        for path in tree.paths
        if path.endswith(".md") and not path.startswith(("CHANGELOG", "tests/"))
        for module in sorted(set(named.findall(tree.text(path))) - WRITTEN_BY_PAGES)
        if module not in endings and not re.search(r"[A-Z]", PurePosixPath(module).stem)
    ]


DOCUMENT_RULES: tuple[Rule, ...] = (
    documented_commands_exist,
    documented_verbs_exist,
    decisions_are_numbered_pages,
    decisions_have_a_status_and_a_date,
    pages_say_what_they_answer,
    pages_are_short,
    the_index_leads_to_every_page,
    the_glossary_is_short,
    named_pages_exist,
    links_lead_to_headings,
    named_modules_exist,
)
