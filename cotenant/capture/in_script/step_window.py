"""Which calls make one optimizer step, and how often they repeat in it."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

from typing import Any

from .argument_records import RECORDS_DEEP, Looks, fields_of, open_records
from .input_gradients import asks_of_input, without_dropped

IN_A_LIST = -1
"""Where samples lie that no dimension of a tensor has."""
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "_FabricModule", "FullyShardedDataParallel", "DeepSpeedEngine")


def unwrapped(module: Any) -> Any:
    """Returns the network inside of wrappers for several devices, for compilation and of Lightning's Fabric."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in _WRAPPERS:
            inner = module.module
        if inner is None:
            return module
        module = inner


def tensor_key(tensor: Any) -> tuple[int, int, int]:
    """Names the numbers that a tensor shows: detached and reshaped views of it have the same name."""
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.numel()


class Call:
    """One call of a network that no other network made.

    Attributes:
        module: The network, unwrapped.
        args: Positional arguments, tensors detached, objects that hold some as records.
        kwargs: Named arguments, alike.
        has_objects: Whether any of them is an object, which torch exports none of.
        outputs: Tensors of its output, detached: kept, so that no other tensor gets their place in memory.
        group: Number of backward passes before it.
        inside_step: Number of the optimizer step that called it from a closure; 0 = none.
        is_transformed: Whether torch.func made it, which hands in tensors that cannot be looked into afterwards.
        odd_layout: `nested` where an input has samples of several lengths in one tensor, `sparse` where it keeps only
            what is not zero; empty = neither.
        parameters: The leaves that it computed with, which are not the network's own where torch.func calls it with
            others; empty = not known.
        samples: Largest first dimension of an input; 0 = no input has any.
        question: Which numbers its inputs show.
        weights_version: Changes whenever a weight does.
        goes_back: Whether a gradient came to its output, as far as that can be seen: none comes to a validation's.
        learning: Names of its weights that asked for a gradient.
        asks_of_input: Whether an input asks for one that leads to no weights, as in an attack.
        is_dropped: Whether its weights keep none.
    """

    def __init__(
        self, torch: Any, module: Any, arguments: Any, *, group: int, inside_step: int, trained: Any = frozenset
    ) -> None:
        self.module = unwrapped(module)
        opened, self.has_objects = open_records(torch, arguments)
        self.asks_of_input = not is_in_transform(torch) and asks_of_input(tensors_of(torch, opened), trained)
        self.args, self.kwargs = _detached(torch, opened)
        self.outputs: list[Any] = []
        self.group = group
        self.inside_step = inside_step
        self.is_transformed = is_in_transform(torch)
        parameters = list(self.module.parameters())
        self.has_parameters = bool(parameters)
        self.parameters = [] if self.is_transformed else [each for each in parameters if each.is_leaf]
        given = [each for each in tensors_of(torch, (self.args, self.kwargs)) if each.dim()]
        self.odd_layout = next(filter(None, map(_odd_layout, given)), "")
        self.samples = max((int(each.size(0)) for each in given), default=0)
        self.elements = sum(int(each.numel()) for each in given)
        dense = [] if self.is_transformed else [each for each in given if each.layout is torch.strided]
        self.question = tuple(map(tensor_key, dense))
        self.weights_version = sum(int(each._version) for each in self.parameters)
        self.goes_back = True
        self.learning = {id(each) for each in parameters if each.requires_grad}
        self.is_dropped = self.asks_of_input and not self.learning

    def note_output(self, torch: Any, output: Any) -> None:
        """Keeps the tensors of the output, and waits for a gradient of one."""
        outputs = outputs_of(torch, output)
        self.outputs = [each.detach() for each in outputs]
        for each in [] if self.is_transformed else outputs:
            if each.requires_grad:
                self.goes_back = False
                each.register_hook(self._note_gradient)

    def _note_gradient(self, gradient: Any) -> None:
        self.goes_back = True


def is_in_transform(torch: Any) -> bool:
    """Returns whether vmap, grad or the like of torch.func run at present."""
    level = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", None)
    return level is not None and level() is not None


def _odd_layout(tensor: Any) -> str:
    if getattr(tensor, "is_nested", False):
        return "nested"
    return "sparse" if "sparse" in str(tensor.layout) else ""


def _detached(torch: Any, values: Any) -> Any:
    def detach(leaf: Any) -> Any:
        return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf

    return torch.utils._pytree.tree_map(detach, values)


def tensors_of(torch: Any, values: Any) -> list[Any]:
    """Returns the tensors of nested values, in order."""
    leaves = torch.utils._pytree.tree_flatten(values)[0]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def images_in_list(torch: Any, call: Any) -> int:
    """Returns how many images, of one or three channels, come in a list, as detectors take a batch; 0 = none do.

    Each may stand in a record of its own beside its boxes, as Detectron2 has it.
    """
    found = 0
    for value in (*call.args, *call.kwargs.values()):
        samples = value if isinstance(value, (list, tuple)) and len(value) > 1 else ()
        if all(_holds_image(torch, sample) for sample in samples):
            found = max(found, len(samples))
    return found


def _holds_image(torch: Any, sample: Any) -> bool:
    fields = sample.values() if isinstance(sample, dict) else (sample,)
    return any(isinstance(each, torch.Tensor) and each.dim() == 3 and each.shape[0] in (1, 3) for each in fields)


def outputs_of(torch: Any, values: Any, depth: int = RECORDS_DEEP, looks: Looks | None = None) -> list[Any]:
    """Returns the tensors of what a network answers: also those of a distribution of actions, or of a record."""
    found: list[Any] = []
    looks = looks or Looks()
    try:
        leaves = torch.utils._pytree.tree_flatten(values)[0]
    except RecursionError:  # a dictionary that holds itself
        leaves = []
    for leaf in leaves:
        is_looked_into = looks.may_open(depth)
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif is_looked_into:
            found += outputs_of(torch, list(fields_of(torch, leaf).values()), depth - 1, looks)
    return found


class Step:
    """One step of one optimizer: how many calls came before its end, when, and what loaders did until then."""

    def __init__(self, optimizer: Any, calls: int, at_s: float, loader_wait_s: float, loaded_batches: int = 0) -> None:
        self.optimizer = optimizer
        self.calls = calls
        self.at_s = at_s
        self.loader_wait_s = loader_wait_s
        self.loaded_batches = loaded_batches


class Window:
    """One optimizer step.

    Attributes:
        calls: Those of one micro-batch, in order.
        accumulation: Micro-batches in one step; None = not known, since no whole step was seen.
        closures: How often a closure was evaluated in one step; 1 = as usual.
        optimizers: All that have parameters; those that step come first.
        has_smaller: Whether other micro-batches of the steps that were seen have fewer samples.
        has_shorter: Whether those have as many samples of fewer elements.
        dropped_passes: How often it computes gradients of inputs that the weights keep nothing of.
        step_s: Length of the step, seconds; 0 = not known.
        wait_s: How long of that data was waited for.
        loaded_batches: What loaders handed out in it; 0 = nothing, or not known.
    """

    def __init__(self, calls: list[Call], accumulation: int | None, closures: int, optimizers: list[Any]) -> None:
        self.calls = calls
        self.accumulation = accumulation
        self.closures = closures
        self.optimizers = optimizers
        self.has_smaller = self.has_shorter = False
        self.dropped_passes = 0
        self.step_s = 0.0
        self.wait_s = 0.0
        self.loaded_batches = 0

    def facts(self) -> dict[str, Any]:
        """Returns what the result file says of the step."""
        return {
            "accumulation": self.accumulation,
            "closures": self.closures,
            "dropped_passes": self.dropped_passes,
            "has_smaller_batches": self.has_smaller,
            "has_shorter_inputs": self.has_shorter,
            "loaded_batches": self.loaded_batches,
            "step_s": self.step_s,
            "wait_s": self.wait_s,
        }

    @property
    def refusal(self) -> str:
        """Why its calls cannot be exported, as a word of the result file; empty = nothing is known against it."""
        if not self.calls:
            return "no_forward"
        if any(call.is_transformed for call in self.calls):
            return "transformed"
        return next((call.odd_layout for call in self.calls if call.odd_layout), "")


def find_window(calls: list[Call], steps: list[Step], optimizers: list[Any], *, is_whole: bool) -> Window:
    """Finds one whole step after the first one of every optimizer that steps at all.

    Args:
        calls: All calls so far.
        steps: All steps so far.
        optimizers: All that were made.
        is_whole: False = the time was used up; what is there is taken.
    """
    if not is_whole:
        groups = _groups(calls)
        return Window(groups[0] if groups else [], None, 1, optimizers)
    seen: set[int] = set()
    stepping = {id(step.optimizer) for step in steps}
    begin = 0
    for number, step in enumerate(steps):
        seen.add(id(step.optimizer))
        if seen == stepping:
            begin = number
            break
    first, last = steps[begin], _last_of_period(steps, begin, stepping)
    groups, closures = _without_repeated_closures(_groups(calls[first.calls : last.calls]))
    if _train_the_same(steps):
        groups, looks = _without_second_looks(groups)
        closures = max(closures, looks)
    period, dropped = _period(_modules(groups)), 0
    if len(groups) > period:  # else they are a part of the step as they are
        groups, dropped = without_dropped(groups)
        period = _period(_modules(groups))
    passes = len(groups) // period if period else 1
    earlier = _groups(calls[: first.calls])
    earlier = (without_dropped(earlier)[0] if dropped else earlier)[-period:] if period else []
    groups, has_smaller, has_shorter = _largest(groups[:period], earlier)
    optimizers = sorted(optimizers, key=lambda each: id(each) not in stepping)
    window = Window([call for group in groups for call in group], passes, closures, optimizers)
    window.has_smaller, window.has_shorter, window.dropped_passes = has_smaller, has_shorter, dropped
    window.step_s, window.wait_s = last.at_s - first.at_s, last.loader_wait_s - first.loader_wait_s
    window.loaded_batches = last.loaded_batches - first.loaded_batches
    return window


def freeze_what_only_answers(window: Window) -> None:
    """Marks weights as not learning to whose network no gradient came, and which no optimizer trains: a teacher's.

    Many scripts call a teacher without `no_grad` and detach its answer.
    """
    if window.accumulation is None:
        return
    trained = {id(each) for optimizer in window.optimizers for each in parameters_of(optimizer)}
    for call in window.calls:
        for each in [] if call.goes_back else call.parameters:
            if id(each) not in trained:
                each.requires_grad_(False)


def awaited(optimizers: Any, steps: list[Step]) -> list[Any]:
    """Returns the optimizers of which steps are to be seen: not one around another, which alone steps, as in SAM.

    Args:
        optimizers: All that were made.
        steps: All steps so far.
    """
    stepping = {id(step.optimizer): step.optimizer for step in steps}
    trained = {id(each) for optimizer in stepping.values() for each in parameters_of(optimizer)}
    own = [{id(each) for each in parameters_of(optimizer)} for optimizer in optimizers]
    return [each for each, names in zip(optimizers, own) if id(each) in stepping or not names <= trained]  # noqa: B905


def _train_the_same(steps: list[Step]) -> bool:
    """Whether all that step train the same: one optimizer, or one that steps within the step of another, as in SAM."""
    stepping = {id(step.optimizer): step.optimizer for step in steps}.values()
    return len(stepping) == 1 or len({frozenset(map(id, parameters_of(each))) for each in stepping}) == 1


def parameters_of(optimizer: Any) -> list[Any]:
    """Returns what an optimizer moves, whether or not it learns at present."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def _last_of_period(steps: list[Step], begin: int, stepping: set[int]) -> Step:
    """The step with which all have stepped again behind that one; the last one where one does not."""
    left = set(stepping)
    for step in steps[begin + 1 :]:
        left.discard(id(step.optimizer))
        if not left:
            return step
    return steps[-1]


def _groups(calls: list[Call]) -> list[list[Call]]:
    """The calls between backward passes; those without a network that learns are none."""
    groups: dict[int, list[Call]] = {}
    for call in calls:
        groups.setdefault(call.group, []).append(call)
    learning = map(_without_validation, groups.values())
    return [group for group in learning if any(call.has_parameters for call in group)]


def _without_validation(group: list[Call]) -> list[Call]:
    """Leaves out what a network that learns only answered, since many scripts validate without `no_grad`."""
    learned = {id(call.module) for call in group if call.goes_back}
    return [call for call in group if call.goes_back or id(call.module) not in learned]


def _largest(groups: list[list[Call]], earlier: list[list[Call]]) -> tuple[list[list[Call]], bool, bool]:
    """The micro-batch of more samples, else of more elements, where the step before was of the same networks.

    Loaders in turn, images of several sizes and texts of several lengths make batches of several sizes; the largest
    one has to fit.

    Returns:
        That, and whether samples, or else elements, differ.
    """
    modules = [[[id(call.module) for call in group] for group in one] for one in (groups, earlier)]
    if modules[0] != modules[1]:
        return groups, False, False
    (samples, elements), (samples_before, elements_before) = map(_size, (groups, earlier))
    is_earlier = (samples_before, elements_before) > (samples, elements)
    has_smaller = samples != samples_before
    return earlier if is_earlier else groups, has_smaller, not has_smaller and elements != elements_before


def _size(groups: list[list[Call]]) -> tuple[int, int]:
    """The most samples of a call, and the elements of all: beside images the length of a text would not be seen."""
    calls = [call for group in groups for call in group]
    return max((call.samples for call in calls), default=0), sum(call.elements for call in calls)


def _without_repeated_closures(groups: list[list[Call]]) -> tuple[list[list[Call]], int]:
    """Keeps the first evaluation of a closure in each step: the others are the line search of that step."""
    counts: dict[int, int] = {}
    kept = []
    for group in groups:
        step = group[0].inside_step
        counts[step] = counts.get(step, 0) + 1
        if step == 0 or counts[step] == 1:
            kept.append(group)
    return kept, max((count for step, count in counts.items() if step), default=1)


def _without_second_looks(groups: list[list[Call]]) -> tuple[list[list[Call]], int]:
    """Keeps the first pass of those over the same samples between which the weights move on within a step, as in SAM.

    Returns:
        What is kept, and how many passes the most of them stand for.
    """
    kept: list[list[Call]] = groups[:1]
    count = most = 1
    for group in groups[1:]:
        count = count + 1 if _looks_again(kept[-1], group) else 1
        most = max(most, count)
        if count == 1:
            kept.append(group)
    return kept, most


def _looks_again(before: list[Call], group: list[Call]) -> bool:
    asked, again = ([(id(call.module), call.question) for call in one] for one in (before, group))
    return bool(group[0].question) and asked == again and group[0].weights_version != before[0].weights_version


def _modules(groups: list[list[Call]]) -> list[list[int]]:
    return [[id(call.module) for call in group if call.has_parameters] for group in groups]


def _period(names: list[list[int]]) -> int:
    """Length of the shortest beginning whose repetition is the whole; 0 for nothing."""
    count = len(names)
    for length in range(1, count + 1):
        if count % length == 0 and names == names[:length] * (count // length):
            return length
    return count
