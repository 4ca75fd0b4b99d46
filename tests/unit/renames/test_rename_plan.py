"""What the rename tool does to a tree, and when it refuses."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tests.support.cases import for_each
from tests.support.renames.external_names import contract_names, external_names, stored_names
from tests.support.renames.long_lines import break_long_lines, break_long_strings
from tests.support.renames.proof import is_proved
from tests.support.renames.rename_map import MAP_PATH, MapError, load_map, read_map
from tests.support.renames.rename_plan import RenamePlan, plan_renames
from tests.support.renames.retired_rule import retired_names_stay_away
from tests.support.renames.source_text import Renamer
from tests.support.repository_rules import Tree

ROOT = Path(__file__).resolve().parents[3]
MAP = """
[modules]
"shop.till" = "shop.register"
[identifiers]
rest = "remainder"
"""


def plan(files: dict[str, str], text: str = MAP, contract: dict[str, str] | None = None, **external: str) -> RenamePlan:
    return plan_renames(files, read_map(text), contract=contract or {}, external=external)


def test_files_move_with_everything_that_names_them() -> None:
    made = plan(
        {
            "shop/till.py": "rest = 1\n",
            "shop/door.py": "from shop.till import rest\n",
            "shop.md": "Run `python -m shop.till`; `shop/till.py` has `rest`, not the rest.\n",
            "notes.csv": "rest\n",
        }
    )
    assert made.objections == ()
    assert made.moves == {"shop/till.py": "shop/register.py"}
    assert made.texts == {
        "shop/till.py": "remainder = 1\n",
        "shop/door.py": "from shop.register import remainder\n",
        "shop.md": "Run `python -m shop.register`; `shop/register.py` has `remainder`, not the rest.\n",
    }


def test_a_second_run_changes_nothing() -> None:
    files = {"shop/till.py": "rest = 1\n", "shop/door.py": "from shop.till import rest\n"}
    made = plan(files)
    after = {made.moves.get(path, path): made.texts.get(path, text) for path, text in files.items()}
    again = plan(after)
    assert (again.texts, again.moves, again.objections) == ({}, {}, ())


@for_each(
    "text",
    [
        "def f(rest, remainder): ...\n",
        "remainder = 1\ndef f():\n    rest = 2\n    return remainder\n",
        "class A:\n    rest: int\n    remainder: int\n",
        "class A:\n    def __init__(self):\n        self.rest = self.remainder = 1\n",
        "f(rest=1, remainder=2)\n",
        "from a import remainder\nrest = 1\n",
    ],
)
def test_two_things_of_one_scope_never_get_one_name(text: str) -> None:
    made = plan({"shop/door.py": text})
    assert [objection.partition(":")[0] for objection in made.objections] == ["shop/door.py"] * len(made.objections)
    assert made.objections
    assert "would both be remainder" in made.objections[0]


def test_the_new_name_may_be_somebody_elses_in_another_scope() -> None:
    assert plan({"shop/door.py": "def f(rest): ...\ndef g(remainder): ...\n"}).objections == ()


def test_names_of_others_are_refused_unless_the_map_says_why() -> None:
    refused = plan({}, contract={"rest": "a name of x.proto"}).objections
    assert refused == ("rest: must keep its name, it is a name of x.proto",)
    assert plan({}, rest="a key of a stored form").objections
    knowing = '[identifiers]\nrest = { to = "remainder", despite = "the stored key has a table of its own" }\n'
    assert plan({}, knowing, rest="a key of a stored form").objections == ()


def test_an_entry_waits_for_the_contract() -> None:
    waiting = '[identifiers]\nrest = { to = "remainder", after_protos = true }\n'
    made = plan({"shop/door.py": "rest = 1\n"}, waiting, contract={"rest": "a name of x.proto"})
    assert (made.texts, made.objections) == ({}, ())
    assert plan({"shop/door.py": "rest = 1\n"}, waiting).texts == {"shop/door.py": "remainder = 1\n"}


def test_an_entry_holds_where_its_spelling_means_the_retired_thing() -> None:
    scoped = (
        '[identifiers]\nrest = [{ to = "remainder", within = ["shop/"], except = ["shop/bed"],'
        ' not_from = ["shop.till"] }, { to = "sleep", within = ["shop/bed"] }]\n'
    )
    files = {
        "shop/door.py": "rest = 1\n",
        "shop/bed.py": "rest = 1\n",
        "shop/till.py": "rest = 1\n",
        "shop/user.py": "from shop.till import rest\n",
        "home/door.py": "rest = 1\n",
    }
    assert plan(files, scoped).texts == {"shop/door.py": "remainder = 1\n", "shop/bed.py": "sleep = 1\n"}


def test_a_module_that_is_not_there_is_told_and_one_that_would_be_overwritten_is_refused() -> None:
    assert plan({"a.py": ""}).remarks == ("module shop.till: not there (done, moved or gone)",)
    assert plan({"shop/till.py": "", "shop/register.py": ""}).objections == (
        "module shop.till: shop.register is there already",
    )


def test_a_text_that_equals_a_retired_name_is_shown_to_a_person() -> None:
    assert "shop/door.py:1: the text 'rest'" in plan({"shop/door.py": "x = row['rest']\n"}).remarks[-1]


def test_a_program_in_a_string_is_shown_to_a_person() -> None:
    made = plan({"shop/door.py": "CODE = f'\\nfrom shop.door import rest\\nrest()\\n{1}'\n"})
    assert made.remarks[-1] == "shop/door.py:1: a program in a string; rename by hand rest"


def test_what_cannot_be_proved_is_refused() -> None:
    assert "not the old one modulo the map" in plan({"shop/door.py": "f'{rest=}'\n"}).objections[0]


@for_each(
    ("text", "finding"),
    [
        ('[identifiers]\na = "b"\nb = "c"\n', "retired too"),
        ('[identifiers]\na = "class"\n', "no identifier"),
        ('[identifiers]\na = { to = "b", form = "x" }\n', "unknown form"),
        ('[identifiers]\na = { to = "b", within = "x" }\n', "expected a list"),
        ('[modules]\n"a.b" = "a.c"\n"a.d" = "a.c"\n', "two modules"),
    ],
)
def test_a_map_that_contradicts_itself_is_refused(text: str, finding: str) -> None:
    with pytest.raises(MapError, match=finding):
        read_map(text)


def test_the_committed_map_is_sound() -> None:
    assert len(load_map(ROOT).entries) > 100


def test_names_of_others_are_found_where_they_are() -> None:
    others = external_names(ROOT)
    assert others["gpu_id"] == "a key of a stored form"
    assert others["victim_key"]
    assert others["steps_total"]
    assert contract_names()["PredictJob"] == "a name of cotenant/v1/prediction.proto"


def test_stored_forms_tell_their_keys(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text('{"kind": "Launched", "jobs": [{"batch": 1, "not a name": 2}]}')
    assert stored_names(tmp_path) == {"kind", "jobs", "batch", "Launched"}


def test_lines_of_prose_that_became_too_long_are_broken() -> None:
    words = "word " * 22
    documented = f'    """First.\n\n    Args:\n        rest: {words}end\n            and more.\n    """\n'
    old = f"def f(rest):\n{documented}    # `rest` {words}end\n"
    tool = Renamer(names={"rest": "remaining_time_of_the_job"}, modules={}, known_modules=frozenset())
    new = break_long_lines(tool.rename(old))
    assert max(map(len, new.split("\n"))) <= 120
    assert is_proved(old, new, tool)
    assert break_long_lines(new) == new


def test_a_string_that_fills_a_line_becomes_two_that_say_the_same() -> None:
    text = 'raise E(\n    f"' + "word {a.b} " * 11 + '{c[d]}",\n)\n'
    broken = break_long_strings(text)
    assert broken.count("\n") == text.count("\n") + 1
    assert max(map(len, broken.split("\n"))) <= 120
    assert ast.dump(ast.parse(broken)) == ast.dump(ast.parse(text))


def test_a_string_without_a_place_to_break_stays() -> None:
    text = 'x = [\n    "' + "w" * 130 + '",\n]\n'
    assert break_long_strings(text) == text


def test_a_summary_that_became_too_long_is_left_to_a_person() -> None:
    text = 'def f():\n    """' + "word " * 25 + 'end."""\n'
    assert break_long_lines(text) == text


def test_the_rule_sleeps_until_the_map_is_applied(tmp_path: Path) -> None:
    for path, text in {MAP_PATH: f"applied = false\n{MAP}", "shop/till.py": "rest = 1\n"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    tree = Tree(root=tmp_path, paths=(MAP_PATH, "shop/till.py"))
    assert retired_names_stay_away(tree) == []
    (tmp_path / MAP_PATH).write_text(f"applied = true\n{MAP}")
    assert retired_names_stay_away(tree) == [
        "shop.till: the module is retired, call it shop.register",
        f"shop/till.py:1: rest is retired, say remainder ({MAP_PATH})",
    ]


def test_renames_on_two_branches_merge_without_a_conflict(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def rename() -> None:
        text = (tmp_path / "door.py").read_text()
        (tmp_path / "door.py").write_text(plan({"door.py": text}).texts["door.py"])
        git("commit", "-qam", "rename")

    lines = "".join(f"def f{number}(rest):\n    return rest\n\n\n" for number in range(5))
    git("init", "-q", "-b", "main")
    (tmp_path / "door.py").write_text(lines)
    git("add", ".")
    git("commit", "-qm", "first")
    git("checkout", "-qb", "side")
    (tmp_path / "door.py").write_text(lines + "def added(rest):\n    return rest\n")
    git("commit", "-qam", "added")
    rename()
    git("checkout", "-q", "main")
    rename()
    git("merge", "-q", "--no-edit", "side")
    assert "rest)" not in (tmp_path / "door.py").read_text()
    assert "def added(remainder)" in (tmp_path / "door.py").read_text()
