"""What the rename tool changes in one file, and what it leaves."""

from __future__ import annotations

from tests.support.cases import for_each
from tests.support.renames.proof import is_proved
from tests.support.renames.source_text import Renamer

KNOWN = frozenset({"shop", "shop.till", "shop.till_roll", "shop.door"})


def renamer(modules: dict[str, str] | None = None, **names: str) -> Renamer:
    return Renamer(names=names or {"rest": "remainder"}, modules=modules or {}, known_modules=KNOWN)


def renamed(text: str, modules: dict[str, str] | None = None, **names: str) -> str:
    """The new text, which must be proved, and must not change again."""
    tool = renamer(modules, **names)
    new = tool.rename(text)
    assert is_proved(text, new, renamer(modules, **names))
    assert tool.rename(new) == new
    return new


@for_each(
    ("old", "new"),
    [
        ("rest = 1\n", "remainder = 1\n"),
        ("order.rest.rest = rest\n", "order.remainder.remainder = remainder\n"),
        ("def f(a, *, rest=0): ...\nf(1, rest=2)\n", "def f(a, *, remainder=0): ...\nf(1, remainder=2)\n"),
        ("class rest:\n    def rest(self): ...\n", "class remainder:\n    def remainder(self): ...\n"),
        ("def f():\n    global rest\n", "def f():\n    global remainder\n"),
        ("match a:\n    case B(rest=1) as rest: ...\n", "match a:\n    case B(remainder=1) as remainder: ...\n"),
        ("try: ...\nexcept E as rest: ...\n", "try: ...\nexcept E as remainder: ...\n"),
        ("arrest, rest_ms = 1, 2\n", "arrest, rest_ms = 1, 2\n"),
    ],
)
def test_a_name_is_renamed_wherever_python_reads_it(old: str, new: str) -> None:
    assert renamed(old) == new


@for_each(
    "text",
    [
        "x = 'rest'\n",
        "x = {'rest': row['rest']}\n",
        "# the rest of it\nx = 1\n",
        '"""The rest is silence."""\n',
        "x = f'the rest {y}'\n",
        "from elsewhere import rest_day\n",
    ],
)
def test_words_of_strings_and_comments_stay(text: str) -> None:
    assert renamed(text) == text


@for_each(
    ("old", "new"),
    [
        ("f'{rest}'\n", "f'{remainder}'\n"),
        ("f'rest {a.rest!r:>{rest}} {{rest}}'\n", "f'rest {a.remainder!r:>{remainder}} {{rest}}'\n"),
        ("f\"{d['rest']} {rest != 1}\"\n", "f\"{d['rest']} {remainder != 1}\"\n"),
        ("f'{ {1: rest}[1] }'\n", "f'{ {1: remainder}[1] }'\n"),
        ("rf'\\d{rest:.1f}'\n", "rf'\\d{remainder:.1f}'\n"),
        ('f"""{\nrest\n}"""\n', 'f"""{\nremainder\n}"""\n'),
    ],
)
def test_replacement_fields_of_f_strings_are_code(old: str, new: str) -> None:
    assert renamed(old) == new


@for_each(
    ("old", "new"),
    [
        ("x: 'list[rest]' = 1\n", "x: 'list[remainder]' = 1\n"),
        ("def f(a: 'rest') -> 'rest | None': ...\n", "def f(a: 'remainder') -> 'remainder | None': ...\n"),
        ("getattr(x, 'rest')\n", "getattr(x, 'remainder')\n"),
        ("patch.setattr(x, 'rest', 1)\n", "patch.setattr(x, 'remainder', 1)\n"),
        ("__slots__ = ('rest', 'a')\n", "__slots__ = ('remainder', 'a')\n"),
        (
            "@mark.parametrize('a, rest', ['rest'])\nclass A: ...\n",
            "@mark.parametrize('a, remainder', ['rest'])\nclass A: ...\n",
        ),
        (
            "@mark.parametrize(('a', 'rest'), [1])\nclass A: ...\n",
            "@mark.parametrize(('a', 'remainder'), [1])\nclass A: ...\n",
        ),
    ],
)
def test_strings_that_python_takes_for_names_are_renamed(old: str, new: str) -> None:
    assert renamed(old) == new


def test_a_literal_type_is_no_annotation_of_names() -> None:
    assert renamed("x: Literal['rest'] = 'rest'\n") == "x: Literal['rest'] = 'rest'\n"


def test_sections_of_docstrings_and_names_in_backticks_are_renamed() -> None:
    section = "    Args:\n        rest: The rest: all.\n"
    old = f'def f(rest):\n    """See `rest` and `a.rest()`, not the rest.\n\n{section}    """\n'
    new = renamed(old)
    assert "See `remainder` and `a.remainder()`, not the rest." in new
    assert "        remainder: The rest: all." in new


MOVED = {"shop.till": "shop.register"}


@for_each(
    ("old", "new"),
    [
        ("from shop.till import Key\n", "from shop.register import Key\n"),
        (
            "from shop import door, till\ntill.open(till=1)\n",
            "from shop import door, register\nregister.open(till=1)\n",
        ),
        ("from shop import till as t\nt.till()\n", "from shop import register as t\nt.till()\n"),
        ("import shop.till as t\n", "import shop.register as t\n"),
        ("from shop.till_roll import till\n", "from shop.till_roll import till\n"),
        ("from shop import (\n    till,  # why\n)\n", "from shop import (\n    register,  # why\n)\n"),
        ("patch.setattr('shop.till.Key.turn', 1)\n", "patch.setattr('shop.register.Key.turn', 1)\n"),
        ("run('python -m shop.till shop/till.py')\n", "run('python -m shop.register shop/register.py')\n"),
        ("x = 'workshop.till'\n", "x = 'workshop.till'\n"),
        ("x = 'shop.till_roll'\n", "x = 'shop.till_roll'\n"),
    ],
)
def test_a_module_is_renamed_in_imports_and_paths(old: str, new: str) -> None:
    assert renamed(old, MOVED, nothing="unused") == new


def test_a_module_keeps_its_name_where_its_last_part_is_a_retired_name() -> None:
    text = "from shop import till\ntill.open()\norder.till = 1\n"
    assert renamed(text, {}, till="register") == "from shop import till\ntill.open()\norder.register = 1\n"


def test_names_of_other_peoples_modules_are_imported_as_they_are() -> None:
    assert renamed("from numpy import rest\n") == "from numpy import rest\n"


def test_layout_and_odd_characters_survive() -> None:
    text = "x = 'é\\x0c' ;  rest=[ 1,\n   rest ]  # ö\n"
    assert renamed(text) == "x = 'é\\x0c' ;  remainder=[ 1,\n   remainder ]  # ö\n"


def test_a_text_that_shows_its_own_expression_is_not_proved() -> None:
    tool = renamer()
    assert not is_proved("f'{rest=}'\n", tool.rename("f'{rest=}'\n"), tool)
