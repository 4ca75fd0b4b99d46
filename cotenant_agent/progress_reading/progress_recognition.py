"""The usual forms in which training scripts print how far they are, for jobs that name no expression and say nothing.

Bars of tqdm that count iterations, batches or steps, those of Keras and alive-progress, and words before a number:
step, global_step, iter, iteration, it, update, num_updates, batch, as in `iter 200 | loss 1.2`, `Step [100/600]`,
`global_step=50`, and their like in some other languages; the count behind an epoch, as in `Epoch: [0][ 20/391]`,
`Epoch 1/90 [20/391]`, `Epoch(train) [1][ 20/391]` and `[0/90][20/391]`; `20/ 391 batches`; with a loss behind
`[20/391] loss: 1.2` and `[2,  2000] loss: 1.2`; and, in any words, a number before the number of steps that the job
states. A number counts once it has grown: what is only printed once, such as a setting, is no progress. Where the
batch is known, numbers of samples are told as steps: `Train Epoch: 1 [640/60000 (1%)]`, `loss: 2.30  [  640/60000]`,
and bars of images, samples or examples. Numbers with a unit behind them are measurements, and bars of downloads, of
preparing data and of validation are named by their words or units.

A line that is written over again and again shows a loop in any words, as in `sweep 12/400`: only where it counts one by
one from its beginning, to at least 20, since fewer, or what is printed line by line, may be epochs, devices or files.

What prints a bar's end only (rich and alive-progress without a terminal, as Lightning does with rich), or epochs,
episodes or rounds alone, is read when the job has ended with success: `Epoch 2/2 ━━━ 100/100`.
"""

from __future__ import annotations

import re

from cotenant_agent.progress_reading.batch_counters import ONE_BATCH, Accumulation
from cotenant_agent.progress_reading.printed_numbers import (
    INSIDE,
    INTEGER,
    LOOSE,
    NUMBER,
    forms_of,
    integer_of,
    total_behind,
)

GROWING_VALUES_MIN = 2
"""So many growing numbers a counter shows before it counts."""

STEP_GROUP = "step"
SAMPLE_GROUP = "sample"
STATED_GROUP = "stated"
"""Found where a number is progress for no other reason than the stated number of steps behind it."""
_COLOUR = r"(?:\x1b\[[0-9;]*m)*"
_UNIT = "(?:it|iter|step|batch)"
_TIMES = rf"\[[0-9:?]{{1,12}}<[0-9:? ]{{1,12}}, {{0,3}}[0-9.?]{{1,12}}(?:{_UNIT}/s|s/{_UNIT})"
_BAR = rf"{LOOSE}(?=/{LOOSE}{_COLOUR} {{1,2}}{_COLOUR}(?:{_TIMES}|\[[=>.]|━|\[[0-9]{{1,3}}%\] in ))"
# A word begins behind no letter, but for the one that ends an order to the terminal, such as to erase the line.
_BEGIN = r"(?:(?<![a-z])|(?<=\x1b\[[A-Z])|(?<=\x1b\[[0-9][A-Z]))"
# First letters are looked at before anything else is: that halves the time of a search.
_ELSEWHERE = (
    "itération|iteraci[oó]n|iteraç[aã]o|iterazione|iterasi|schritt|étape|paso|passo|krok"
    "|шаг|итерация|ステップ|反復|스텝|迭代(?:次数|步数)?|步[数骤]"
    "|第(?! {0,2}[0-9]{1,9} {0,2}(?:个|個)?(?:轮|輪|代|折|epoch|エポック))"
)
_WORDS = f"(?:step|iter|iteration)(?:[ _](?:no[.]?|num|number))?|it|num_updates|updates?|batch(?:[ _]idx)?|{_ELSEWHERE}"
_COMPOUND = "(?:(?<=trainings)(?=schritt)|(?<=optimierungs)(?=schritt)|(?<=mini)(?=batch))"
# In the plural it may be a setting or an episode's length; right before a loss it is neither.
_MANY = (
    r"(?:steps|iters|iterations)(?=(?: done| completed)?[\"']? {0,2}[:=]? {0,8}[0-9][0-9/,_ ]{0,20}[\"']?"
    r"[\])|,;: \t\"']{0,6}(?:train(?:ing)?[ _/])?loss)(?: done| completed)?"
)
_WORD = rf"(?=[sinubépkшиス스第迭步反])(?:{_BEGIN}|{_COMPOUND})(?:{_WORDS}|{_MANY})(?: ?\((?:train|training)\))?"
# The exponent of 5e-05 is no number of its own.
_DIGIT = rf"(?=[0-9])(?<![0-9./])(?<![0-9]e[+-]){INSIDE}"
_BETWEEN = r"(?:[\"']?[ \t]{0,2}[:=#\uff1a]?[ \t]{0,2}[\[(#\"']? {0,8}|[_-])"
_OPEN_BAR = rf"[0-9]{{1,15}}(?={_UNIT} \[[0-9:]{{1,12}}, )"  # of a loader without a length
_COUNT = rf"(?={LOOSE}/ {{0,4}}{LOOSE}"
_EPOCH_NUMBER = r"[\[(]? {0,4}[0-9]{1,9}(?:/[0-9]{1,9})?[\])]?"
_EPOCH = rf"epoch(?:\(train\))?:? {{0,3}}{_EPOCH_NUMBER}[,:]? {{0,3}}[\[(] {{0,8}}{_COUNT} ?[\])])"
_PAIR = rf"\[ {{0,4}}[0-9]{{1,9}}/ {{0,4}}[0-9]{{1,9}}\] {{0,2}}\[ {{0,8}}{_COUNT} ?\])"
# Behind nothing else and with a loss behind: compilers count their files in the same brackets.
_LOSS = "[:|,-]? {0,3}loss"
# What stands behind a stated total is its unit, but for a loss: `12/80 loss 1.6`.
# Or for another measurement's name and its value: `12/80  acc 0.61`.
_MEASURED_BEHIND = r"(?!(?:[kmgt]?i?b|bytes|files?|[mun]?s)\b)[a-z][a-z0-9_/-]{0,23} ?[:=]? ?-?[0-9]{1,9}\.[0-9]"
# Or for a word of progress: `12 of 80 done`.
_DONE_BEHIND = (
    r"(?:(?:optimi[sz]er )?(?:steps?|iter(?:ation)?s?|batches|updates)|done|completed?|finished|fertig|erledigt"
    r"|abgeschlossen|terminé|completado|hecho)\b"
)
_UNIT_BEHIND = rf" {{0,2}}(?!(?:[a-z]{{1,10}}[ _-])?loss|{_DONE_BEHIND}|{_MEASURED_BEHIND})[a-z%]"
# Between a line's number and the total no step is named: `train:42 - Step 80`; nor behind one of a column of its own.
_NO_STEP_BETWEEN = (
    r"(?![^0-9\r\n]{0,11}(?:steps?|iter(?:ation)?s?|batch|updates?)[ :=#]{1,3}[0-9]"
    r"|[^0-9|\r\n]{0,11}\| {0,3}[0-9]{1,12} (?:steps|iter(?:ation)?s|batches|updates)\b)"
)
_COUNT_AND_LOSS = rf"^\[ {{0,8}}{_COUNT} ?\] {{0,3}}{_LOSS})"
_EPOCH_AND_LOSS = rf"\[ {{0,4}}[0-9]{{1,9}}, {{0,8}}(?=[0-9]{{1,15}}\] {{0,3}}{_LOSS})"
_LOSSES = f"{_COUNT_AND_LOSS}|{_EPOCH_AND_LOSS}"
# A bar that a script draws itself, before the count: nothing says its unit but what stands behind. tqdm's are above.
_NO_STEPS = r"[0-9]| ?(?:[kmgt]?i?b|bytes|files?)\b| \[[0-9:?]{1,12}<"
_DRAWN = (
    rf"[\[|][=#█>░▒▓. -]{{5,200}}[\]|] {{0,2}}(?:[0-9.]{{1,6}} ?% ?[(|\[]? ?)?"
    rf"(?={LOOSE}/ {{0,4}}[0-9]{{1,15}}(?!{_NO_STEPS}))"
)
# Rich draws its bars so while they move, if it takes the log for a terminal.
_RICH = (
    rf"[━╸╺](?:[━╸╺]|\x1b\[[0-9;]{{0,12}}m){{2,400}} {{1,3}}{_COLOUR}"
    rf"(?={LOOSE}/ {{0,4}}[0-9]{{1,15}}(?!\.[0-9]|{_NO_STEPS}))"
)
_SAMPLES_A_SECOND = "[0-9.?]{1,12} ?(?:im|sample|example|ex|seq)[a-z]{0,5}/s|[0-9.]{1,12}s/(?:im|sa|ex|seq)"
_SAMPLES_TIMES = rf"\[[0-9:?]{{1,12}}<[0-9:? ]{{1,12}}, {{0,3}}(?:{_SAMPLES_A_SECOND})"
_BATCHES = rf"{LOOSE}(?=/ {{0,8}}{LOOSE} (?:batches|iterations|iters|steps|updates)\b)"
# With a percentage behind it a count of an epoch is one of samples, but for timm's.
_TIMM = rf"train: {{1,3}}[0-9]{{1,6}} {{1,2}}\[ {{0,8}}{_COUNT} \()"
_SAMPLES = (
    rf"(?:(?=[el]){_BEGIN}(?:epoch:? {{0,3}}[0-9]{{1,9}}(?:/[0-9]{{1,9}})? {{1,3}}\[ {{0,8}}{_COUNT} \()"
    rf"|loss:? {{1,3}}[0-9.]{{1,12}} {{1,3}}\[ {{0,8}}{_COUNT}\]))"
    rf"|{_DIGIT}(?=[0-9]{{1,15}}/[0-9]{{1,15}} {_SAMPLES_TIMES}))"
)

# Behind any word, or none. Times, sizes and dates are no counts.
_NO_LOOP = (
    rf"{_NO_STEPS}|/|[.:,][0-9]| ?(?:%|[mun]?s|secs?|seconds?|mins?|minutes?|h|hours?|samples?|images?|epochs?)\b"
)
_EPOCH_BEFORE = r"(?<![^\W\d_])epoch:? {0,2}[\[(]?[0-9]{1,9}(?:/[0-9]{1,9})?[\])]?[:,]?(?= )"
# A bar without brackets, a column's edge, or what is only a blank behind another number: `E1 ### 12/50`, `┃ 1 ┃ 12/50`.
_APART = r"(?<=[ \t|┃│║>)\]#=█▉▊▋▌▍▎▏▓▒░])[(\[]? {0,4}"
_LOOP = re.compile(
    rf"(?i)(?:(?:^|(?<=[^\W\d_])|{_EPOCH_BEFORE}) {{0,3}}(?:[:=#|(\[]| - )? {{0,8}}|{_APART})"
    rf"(?P<{STEP_GROUP}>{INTEGER})"
    rf"(?= ?/ {{0,8}}{INTEGER}(?!{_NO_LOOP}))"
)
_LOOPS_IN_LOOPS = 2
# Of the data: many steps each, or read before training, unless the stated ones are as many as the pieces and each of
# these is measured: `pass 1/3 chunk 5/20 gain 0.3`, not `read file 1/3 part 5/20`.
_PIECE = re.compile(r"(?i)\b(?:chunk|part|shard)s?\b")
_MEASURED_PIECE = re.compile(rf"(?i)[\])]?[ |,:;-]{{1,4}}{_MEASURED_BEHIND}")
_OUT_OF_TOTAL = re.compile(
    rf"(?i)(?<![\w.,/:-])(?P<{STEP_GROUP}>[0-9]{{1,9}}) ?(?:/|(?:out )?of|von|sur|de|di|из) {{0,6}}"
    rf"(?P<total>[0-9]{{1,9}})(?![\w./])(?!{_NO_LOOP})"
)
_DIGITS = re.compile("[0-9]")
_LOOP_TOTAL_MIN = 20
"""What ends earlier may be epochs, folds or devices."""

_OTHER_WORK = re.compile(
    r"(?i)\b(?:download|map|token|load|filter|generat(?!ors?\b)|fetch|extract|eval|valid|test|predict|infer|pre-?process"
    rf"|prepar|cach|index|resolv|cast|scan|sanity|held[ -]?out\b)|\b(?:val|dev)(?: (?:{_WORDS}))?$"
    r"|\b(?:warm ?up|remaining|max|left) (?:steps?|iter)"
    r"|\b(?:episode|game|reward|return)\b.*\b(?:steps|iters|iterations)$"
)

# What has many steps, is read or made before training, or is no count; what else there is may be a loop's unit.
_OUTER_LOOP = re.compile(
    r"(?i)\b(?:epo[ckq]|ep\b|époque|época|эпох|エポック|episod|épisode|round|runde|fold|trial|seed|repeat|generation"
    r"|gpu|device|rank|worker|node|file|shard|chunk|part|page|row|line|item|record|document|example|frame|video|user"
    r"|read|writ|copy|pars|decod|encod|convert|render|build|creat|augment|resiz|process|unpack|unzip|upload|import"
    r"|sampl|imag|day|week|month|time|eta|elapsed|warm|val\b"
    r"|layer|class|stage|patience|counter|correct|score|reward|game)|/s\b"
)

# Of bars of samples only: of steps these words may be anything.
_MAKES_DATA = re.compile(r"(?i)\b(?:add|apply|convert|creat|flatten|group|pack|truncat)")

# What was saved at a step has come that far; files that are saved one by one have not.
_SAVING = re.compile(r"(?i)\b(?:sav|writing\b)")
_AT_STEP = re.compile(rf"(?i)\b(?:{_WORDS})$")
_FULL_BAR = re.compile(r"(?m)^(.{0,200}?)(?:━{3,}|\|█{3,}\|) {1,3}([0-9]{1,12})/([0-9]{1,12})(?![0-9./])")

_LAST = (
    r"s?:? {0,3}[\[(]?([0-9]{1,9}) ?(?:/|of) ?([0-9]{1,9})(?![0-9.])[\])]?"
    r"(?:[,: -]{0,3}(━)?[━╸╺ =#>\[(]{0,200}([0-9]{1,12})/([0-9]{1,12})(?![0-9./]))?"
)
_LAST_PLAIN = (
    r"s?:? {0,3}[\[(]?([0-9]{1,9})(?![0-9]|[.,/][0-9]| (?:/|of) )"
    r"(?:[^\r\n]{0,60}?\b(?:steps|batches)(?: per epoch)?[:=] {0,3}([0-9]{1,9})(?![0-9.,/]))?"
)
_LAST_OF_UNITS = tuple(
    (re.compile(rf"(?i)(?<![a-z]){unit}{_LAST}"), re.compile(rf"(?i)(?<![a-z]){unit}{_LAST_PLAIN}"))
    for unit in ("(?:epoch|episode)", "round")
)
"""Of a unit with its total, and without; a later unit counts where none before it is printed."""
_TAIL_CHARACTERS = 4096
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def recognised(steps_total: int = 0, batch_size: int = 0) -> str:
    """Returns the expression of all forms.

    Args:
        steps_total: What the job states; a number right before it counts in any language, as in `Schritt 7 von 600`.
        batch_size: Samples of one step; with it a group `sample` finds numbers of samples. 0 = not known.
    """
    bars = f"{_BAR}|{_OPEN_BAR}|{_BATCHES}"
    if steps_total > 0:
        ends = rf"0{{0,4}}(?:{forms_of(steps_total)})(?![0-9]|[.,][0-9]|{_UNIT_BEHIND})"
        stated = rf"{LOOSE}{_NO_STEP_BETWEEN}[^0-9,.%\r\n]{{1,12}}{ends}"
        bars += rf"|(?<![0-9]:)(?P<{STATED_GROUP}>{stated})"
    # One group of one name: the words are looked back at from the number only where there is no bar.
    words = rf"{_WORD}{_BETWEEN}(?=[0-9])|(?=[et]){_BEGIN}(?:{_EPOCH}|{_TIMM})"
    marks = rf"{words}|{_PAIR}|{_LOSSES}|{_DRAWN}|{_RICH}|{_DIGIT}(?={bars})"
    samples = rf"|{_SAMPLES}(?P<{SAMPLE_GROUP}>{INTEGER})" if batch_size > 0 else ""
    return rf"(?i)(?:{marks})(?P<{STEP_GROUP}>{NUMBER}){samples}"


def steps_of_samples(samples: int, total: int, batch_size: int) -> int:
    """Returns the steps that a number of samples is; -1 = it cannot be one of whole batches.

    Args:
        samples: What is printed.
        total: Of the data, whose last batch may be smaller.
        batch_size: Samples of one step.
    """
    return -1 if samples % batch_size and samples != total else -(-samples // batch_size)


def steps_of_last_epoch(tail: str, steps_total: int, accumulation: Accumulation = ONE_BATCH) -> int:
    """Returns the steps of a job by the last epoch that it printed.

    Args:
        tail: The end of its log.
        steps_total: What was stated; it decides whether epochs count from 0 or 1, whether they are its steps, and which
            is the last one where that is not printed (`Epoch: 200, Loss: 0.1`).
        accumulation: What is known of the batches of a step.

    Returns:
        Steps; 0 = no epoch, or not the last one, or not at its end.
    """
    text = _COLOURS.sub("", tail[-_TAIL_CHARACTERS:])
    last_of, last_plain = next(
        (unit for unit in _LAST_OF_UNITS if any(form.search(text) for form in unit)), _LAST_OF_UNITS[0]
    )
    found = next(reversed(list(last_of.finditer(text))), None)
    if found is None:
        epochs = [(int(epoch), int(steps or 1)) for epoch, steps in last_plain.findall(text)[-1:]]
        is_last = any(
            steps_total in (number, number * steps) for epoch, steps in epochs for number in (epoch, epoch + 1)
        )
        return steps_total if is_last else 0
    if is_other_work(found.string[: found.start()].rpartition("\n")[2]):
        return 0
    epoch, last, drawn, step, steps = found.groups()
    if int(epoch) != int(last) or step != steps:
        return 0
    numbers, batches = (int(last), int(last) + 1), int(steps or 1)
    if any(steps_total == number * batches for number in numbers):
        return steps_total
    steps_done = [accumulation.steps_of_epochs(number, batches) for number in numbers]
    # Without the bar that Lightning draws, which counts from 0, it may be one of samples.
    return steps_total if steps_total in steps_done else steps_done[1] if drawn else 0


def steps_of_full_bar(tail: str, accumulation: Accumulation = ONE_BATCH) -> int:
    """Returns the steps of a job by the longest bar that it left behind, full; 0 = none.

    Bars of rich and alive-progress are printed once where there is no terminal, when they are full.

    Args:
        tail: The end of its log.
        accumulation: What is known of the batches of a step.
    """
    found = _FULL_BAR.findall(_COLOURS.sub("", tail[-_TAIL_CHARACTERS:]))
    full = (int(step) for label, step, steps in found if step == steps and not is_other_work(label))
    return max((accumulation.steps_of_epochs(1, batches) for batches in full), default=0)


def find_loop(text: str) -> re.Match[str] | None:
    """Returns where a line that is written over shows how far a loop is, whatever its unit is called: `sweep 12/400`.

    Args:
        text: The line; of several counts the last one is meant, which is the inner one.
    """
    found = next(reversed(list(_LOOP.finditer(text))), None)
    if found is None:
        return None
    step, end = integer_of(found[STEP_GROUP]), found.end(STEP_GROUP)
    # Of `epoch 3: sweep 12/400` the words behind the last number name the unit.
    unit = _DIGITS.split(text[: found.start(STEP_GROUP)])[-1]
    is_loop = total_behind(text, end, step) >= max(step, _LOOP_TOTAL_MIN)
    return found if is_loop and not is_outer_loop(unit) else None


def find_inner_loop(line: str, steps_total: int) -> re.Match[str] | None:
    """Returns where a line shows the inner one of two loops that make the stated steps, as `tour 1/2 > leg 5/40`.

    Args:
        line: One without any number whose words name it.
        steps_total: What the job states; 0 = nothing, and then two totals tell nothing.
    """
    loops = list(_OUT_OF_TOTAL.finditer(line)) if steps_total > 0 else []
    if len(loops) != _LOOPS_IN_LOOPS:
        return None
    outer, inner = ((integer_of(each[STEP_GROUP]), integer_of(each["total"])) for each in loops)
    is_inside = outer[0] <= outer[1] and inner[0] <= inner[1]
    unit = line[loops[0].end() : loops[1].start()]
    makes_steps = outer[1] > 1 and outer[1] * inner[1] == steps_total
    if _MEASURED_PIECE.match(line, loops[1].end()) is not None:
        unit = _PIECE.sub("", unit)
    return loops[1] if is_inside and makes_steps and not is_outer_loop(unit) else None


def is_outer_loop(unit: str) -> bool:
    """Whether the words before a number say that it counts what has many steps, or something else than training."""
    return _OUTER_LOOP.search(unit) is not None


def is_beyond_stated(match: re.Match[str], steps_total: int) -> bool:
    """Whether the stated number of steps is no total of the number before it: `1565 | step 120` is at step 120 of 120.

    Args:
        match: Of the expression of `recognised`.
        steps_total: What the job states.
    """
    if steps_total <= 0 or match[STATED_GROUP] is None:
        return False
    return integer_of(match[STEP_GROUP] or "") > steps_total


def is_other_work(label: str) -> bool:
    """Whether the words before a number say that it counts no training."""
    if _SAVING.search(label) is not None and _AT_STEP.search(label) is None:
        return True
    return _OTHER_WORK.search(label) is not None


def makes_data(label: str) -> bool:
    """Whether the words before a number of samples say that these are made ready, as libraries of data sets do."""
    return _MAKES_DATA.search(label) is not None
