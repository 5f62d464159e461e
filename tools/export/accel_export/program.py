"""Records a model with torch.export and writes it as .pt2."""

import dataclasses

import sympy
import torch

from . import structure, tensor_parallel
from .inputs import tensors
from .refused import Refused, innermost, named, place_in_graph
from .subject import name_of_length

GROUPED_MM = "transformers.grouped_mm_fallback.default"  # Import takes it as aten._grouped_mm.
MOST_SCANNED = 16384  # How far sizes are tried that the guards of a program allow.


@dataclasses.dataclass
class Program:
    """What torch.export recorded, and for which sizes it holds."""

    exported: torch.export.ExportedProgram
    fixed: dict[str, int]  # Dimensions of one size alone, by name.
    ranges: dict[str, tuple[int, int | None]]  # The least and the largest size of the others, as far as torch.export knows.
    symbols: dict[str, sympy.Expr]  # What stands for each of the others in the record.
    plan: tensor_parallel.Plan | None = None

    def broken_guard(self, subject, sizes):
        """Returns a condition of the recording on the sizes of the inputs that does not hold for `sizes`, or None."""
        given = dict(zip((item.name for item in subject.inputs), tensors(subject.inputs, sizes, 0)))
        for guard in getattr(self.exported, "_guards_code", None) or []:
            if not eval(guard, {"L": given, "min": min, "max": max}):
                return guard
        for name, (least, most) in self.ranges.items():
            if sizes[name] < least or (most is not None and sizes[name] > most):
                return f"{least} <= {name} <= {most}"
        return None


def hint_of(error, words):
    text = f"{type(error).__name__}: {error}"
    if "data-dependent" in text or "GuardOnDataDependentSymNode" in text or "unbacked" in text.lower():
        return "the line decides by the values of tensors, which a record cannot: write it without a branch, or turn it off"
    if "autograd.Function" in text:
        return "replace the torch.autograd.Function by operators of torch"
    return f"torch.export cannot record this model; if it fails at one length alone, try {words.one_size('length')}"


def record(subject):
    """Returns the Program. Raises Refused if torch.export cannot record the model for sizes that vary, unless the user
    has given those that do not."""
    model = subject.model
    recorded = {name: size.recorded for name, size in subject.sizes.items()}
    free = tuple({dim: torch.export.Dim.AUTO for dim, name in enumerate(item.dims) if name} for item in subject.inputs)
    example = tuple(tensors(subject.inputs, recorded, 0))
    model.train()
    with named("torch.export.export", model, lambda error: hint_of(error, subject.words)):
        exported = torch.export.export(model, example, dynamic_shapes=free, strict=False)
    require_known_operators(exported)
    program = Program(exported, {}, {}, {})
    read_sizes(program, subject)
    return program


def read_sizes(program, subject):
    nodes = {node.name: node for node in program.exported.graph.nodes if node.op == "placeholder"}
    seen = {}
    for item, placeholder in zip(subject.inputs, program.exported.graph_signature.user_inputs):
        for dim, name in enumerate(item.dims):
            if name is not None:
                seen.setdefault(name, nodes[placeholder].meta["val"].shape[dim])
    for name, size in seen.items():
        value = size if isinstance(size, int) else size.node.shape_env.simplify(size.node.expr)
        if isinstance(size, int) or value.is_number:
            program.fixed[name] = int(value)
            if not subject.sizes[name].given:
                # Another dimension may have the same size, so that the line is the first that asks for this number.
                place = place_of_guard(program, lambda guard: isinstance(guard, sympy.Eq) and value in guard.args)
                raise Refused(f"the record holds for one {name} alone, {int(value)}: the model computes in Python with this size, as a "
                              "loop over tokens does" + at(place) +
                              f"\nhint: if you train with one {name}, give it: {subject.words.one_size(name)}")
        else:
            limits = program.exported.range_constraints.get(size.node.expr)
            most = None if limits is None or limits.upper > 2 ** 40 else int(limits.upper)
            # torch.export takes sizes of at least 2 for granted. What a program does with 1 is compared (sizes_of_one).
            least = 1 if limits is None or limits.lower <= 2 else int(limits.lower)
            program.ranges[name] = (least, most)
            program.symbols[name] = size.node.expr


def place_of_guard(program, is_it):
    """Returns the author's line for which torch.export recorded the first condition that `is_it`, or an empty text."""
    values = (node.meta.get("val") for node in program.exported.graph.nodes)
    mode = next((value.fake_mode for value in values if hasattr(value, "fake_mode")), None)
    for guard in mode.shape_env.guards if mode is not None and mode.shape_env is not None else []:
        if is_it(guard.expr) and (place := innermost([guard.sloc.framework_loc])):
            return place
    return ""


def place_of_broken_guard(program, sizes):
    given = {symbol: sizes[name] for name, symbol in program.symbols.items()}
    return place_of_guard(program, lambda guard: guard.subs(given) == sympy.false)


def at(place):
    return f"\n  at {place}" if place else ""


def require_known_operators(exported):
    """Raises Refused for operators that accel does not run, with the module and the line."""
    known = ("aten", "prims", "prim", "higher_order")
    for node in exported.graph.nodes:
        namespace = getattr(node.target, "namespace", None)
        if node.op != "call_function" or namespace is None or namespace in known or str(node.target) == GROUPED_MM:
            continue
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        where = f" in module '{stack[-1][0]}'" if stack and stack[-1][0] else ""
        place = place_in_graph(node.meta.get("stack_trace"))
        raise Refused(f"the model calls the custom operator {node.target}{where}" + at(place) +
                      "\nhint: accel runs the operators of torch alone (aten); choose an implementation without it, such as "
                      "sdpa for attention")


def check_sizes(program, subject):
    """Returns the two sets of sizes that are compared. Raises Refused if the record does not hold for them."""
    sets = []
    for which in (0, 1):
        sizes = {}
        for name, size in subject.sizes.items():
            least, most = program.ranges.get(name, (1, None))
            sizes[name] = program.fixed.get(name, max(least, min(size.checked[which], most or size.checked[which])))
        if guard := program.broken_guard(subject, sizes):
            if not any(size.given for name, size in subject.sizes.items() if name != "batch"):
                shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
                raise Refused(f"the record does not hold for {shown}: the model asks in Python whether {shortened(guard)}" +
                              at(place_of_broken_guard(program, sizes)) +
                              f"\nhint: if you train with one length, give it: {subject.words.one_size(name_of_length(subject))}")
            sizes = {name: size if name == "batch" else subject.sizes[name].recorded for name, size in sizes.items()}
            if guard := program.broken_guard(subject, sizes):
                raise Refused(f"the record does not hold for batches of {sizes['batch']}: the model asks in Python whether "
                              f"{shortened(guard)}" + at(place_of_broken_guard(program, sizes)) +
                              f"\nhint: if you train with one batch size, give it: {subject.words.one_size('batch')}")
        sets.append(sizes)
    return sets


def sizes_of_one(program, subject, sizes):
    """Returns `sizes` with 1 for one of the dimensions that vary, for each of those for which the record lets it be 1."""
    free = [name for name, (least, _) in program.ranges.items() if least == 1 and not subject.sizes[name].given]
    ones = [{**sizes, name: 1} for name in free]
    return [one for one in ones if program.broken_guard(subject, one) is None]


def shortened(text, most=200):
    return text if len(text) <= most else text[:most] + "..."


def sizes_that_train(program, subject):
    """Returns a text for each dimension, such as "length: any"."""
    texts = []
    recorded = {name: size.recorded for name, size in subject.sizes.items()}
    for name in recorded:
        if name in program.fixed:
            texts.append(f"{name}: {program.fixed[name]} alone")
            continue
        least, most = program.ranges.get(name, (1, None))
        if getattr(program.exported, "_guards_code", None):
            def holds(size):
                return program.broken_guard(subject, {**recorded, name: size}) is None
            least = 1 + next((size for size in range(recorded[name], least - 1, -1) if not holds(size)), least - 1)
            most = largest(recorded[name], most or MOST_SCANNED, holds) if most or not holds(MOST_SCANNED) else None
        texts.append(f"{name}: " + ("any" if least <= 2 and most is None else f"{least} to {most or 'any'}"))
    return texts


def largest(size, limit, holds):
    """Returns the largest size from `size` up to which all sizes seem to hold. Steps double, and then halve."""
    step = 1
    while step > 0:
        if size + step <= limit and holds(size + step):
            size, step = size + step, 2 * step
        else:
            step //= 2
    return size


def values_of(subject, with_values):
    """Returns what the file stores for each parameter: float32, or nothing for parameters without values."""
    stored, made = {}, {}
    for name, parameter in subject.model.named_parameters(remove_duplicate=False):
        if not with_values or not structure.has_values(parameter):
            made.setdefault(id(parameter), structure.without_values(parameter))
        elif name in subject.masters:
            made.setdefault(id(parameter), torch.nn.Parameter(subject.masters[name], requires_grad=parameter.requires_grad))
        else:
            made.setdefault(id(parameter), parameter)
        stored[name] = made[id(parameter)]
    return stored


def save(program, subject, path, notes, with_values):
    """Writes the file. torch.export.load reads it in any case; without values, its parameters are on the meta device."""
    exported = program.exported
    state = exported.state_dict
    for name, value in values_of(subject, with_values).items():
        if name in state:
            state[name] = value
    with named("torch.export.save", subject.model, lambda error: "the file cannot be written; see the reason above"):
        torch.export.save(exported, path, extra_files={"accel.json": notes})
