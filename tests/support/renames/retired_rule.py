"""The repository's rule about the map: what is retired stays away once the tree has been renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.renames.external_names import contract_names
from tests.support.renames.rename_map import GENERATED_FOLDER, MAP_PATH, TOOL_TESTS, known_modules, read_map
from tests.support.renames.source_text import Renamer, words_of

if TYPE_CHECKING:
    from tests.support.repository_rules import Tree


def retired_names_stay_away(tree: Tree) -> list[str]:
    """No Python name and no module is one that the map retires; words in prose are free."""
    if MAP_PATH not in tree.paths:
        return []
    wanted = read_map(tree.text(MAP_PATH))
    if not wanted.applied:
        return []
    waiting = {entry.old for entry in wanted.entries if entry.after_protos} & contract_names().keys()
    known, retired = known_modules(tree.paths), {entry.old for entry in wanted.entries} - waiting
    complaints = [f"{old}: the module is retired, call it {new}" for old, new in wanted.modules.items() if old in known]
    for path in tree.paths:
        if not path.endswith(".py") or path.startswith((GENERATED_FOLDER, *TOOL_TESTS)):
            continue
        words = words_of(text := tree.text(path))
        if words.isdisjoint(retired):
            continue
        names = {old: new for old, new in wanted.names_in(path, tree.module(path)).items() if old not in waiting}
        if words.isdisjoint(names):
            continue
        found = Renamer(names=names, modules={}, known_modules=known).retired_names(text)
        complaints += [f"{path}:{row}: {old} is retired, say {new} ({MAP_PATH})" for row, old, new in found]
    return complaints
