"""Finds the module in which a file is not the model, and its line."""

import collections
import inspect
import random

import torch

from .check import LOSS, TOLERANCES, flat
from .refused import is_authors, place_in_error, place_in_graph, quiet


class Values(torch.fx.Interpreter):
    """Runs the graph and keeps the tensors that the nodes of each module made."""

    def __init__(self, module):
        super().__init__(module)
        self.of_module = {}

    def run_node(self, node):
        result = super().run_node(node)
        for path, _ in (node.meta.get("nn_module_stack") or {}).values():
            for value in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(value, torch.Tensor):
                    self.of_module.setdefault(path, []).append((node, value.detach()))
        return result


def outputs_of_modules(model, inputs):
    """Returns (name, class, tensor) of each call of a module, in the order in which the calls end."""
    seen = []

    def keep(name):
        def hook(module, arguments, result):
            value = result[0] if isinstance(result, (tuple, list)) and result else result
            if isinstance(value, torch.Tensor):
                seen.append((name, type(module).__name__, value.detach().clone()))
        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_modules() if name]
    try:
        seed()
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def seed():
    torch.manual_seed(1)
    random.seed(1)


def place(program, subject, file, inputs, training, off):
    """Returns a text for a message about a difference that `inputs` have shown: a module and a line. `program` is None for
    a traced file. `off` has the differences of loss, gradients and buffers that are too large, by name."""
    if not training:
        found = first_other_mode(subject, file, inputs)
    elif program is not None:
        found = first_difference(program, subject, inputs)
    else:
        found = first_other_module(subject, file, inputs)
    return found or owner(subject.model, off)


def first_difference(program, subject, inputs):
    """Returns a text: the first module whose output no node of the graph has, by hooks on the model and by running the
    graph of training, and the line of the module's last node. Empty if the graph has every output, or cannot run."""
    calls = outputs_of_modules(subject.train(), inputs)
    seed()
    with quiet():
        try:
            values = Values(program.exported.module(check_guards=False))
            values.run(*inputs)
        except Exception:  # What the graph had reached is compared.
            pass
    tolerance = TOLERANCES[subject.dtype]
    for name, kind, expected in calls:
        made = values.of_module.get(name)
        if made and not any(value.shape == expected.shape and torch.allclose(value.float(), expected.float(), tolerance, tolerance)
                            for _, value in made):
            place = place_in_graph(made[-1][0].meta.get("stack_trace"))
            return f"\n  the first module with another output is '{name}' ({kind})" + (f"\n  at {place}" if place else "")
    return ""


def first_other_module(subject, file, inputs):
    """Returns a text: the first module that gives another output than that of its name in a traced file, for the inputs
    that it has in the model, and the line of its forward. Modules of one tensor alone are compared, because a traced module
    takes tensors in an order of its own. Empty if there is no such module."""
    calls = []

    def keep(name):
        def hook(module, arguments, keywords, result):
            given = [value for value in (*arguments, *keywords.values()) if value is not None]
            if len(given) == 1 and isinstance(given[0], torch.Tensor) and isinstance(result, torch.Tensor):
                calls.append((name, module, given[0].detach().clone()))
        return hook

    hooks = [module.register_forward_hook(keep(name), with_kwargs=True) for name, module in subject.model.named_modules() if name]
    try:
        subject.train()(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    traced, tolerance = dict(file.train().named_modules(remove_duplicate=False)), TOLERANCES[subject.dtype]
    for name, module, given in calls:
        outputs = []
        try:
            for side in (module, traced[name]):
                seed()
                outputs.append(side(given))
        except (AttributeError, KeyError, RuntimeError, TypeError) as error:
            if "failed in the TorchScript interpreter" not in str(error):  # The traced module has other arguments.
                continue
            line = place_in_error(error)
            return f"\n  the first module that fails is '{name}' ({type(module).__name__})" + (f"\n  at {line}" if line else "")
        if isinstance(outputs[1], torch.Tensor) and not torch.allclose(*outputs, tolerance, tolerance, equal_nan=True):
            line = line_of(type(module), "def ")
            return f"\n  the first module with another output is '{name}' ({type(module).__name__})" + (f"\n  at {line}" if line else "")
    return ""


def first_other_mode(subject, file, inputs):
    """Returns a text: the first module whose mode changes the model in another way than the file, and the line that asks
    for the mode. Both are the same in training, so all of one class are put into evaluation at a time, and then each of
    them. Empty if there is no such module, or if the file has no modules of these names."""
    classes = {}
    for name, module in subject.model.named_modules():
        classes.setdefault(type(module), []).append(name)
    try:
        for kind, names in classes.items():
            if is_other_mode(subject, file, inputs, names):
                name = next((name for name in names if is_other_mode(subject, file, inputs, [name])), names[0])
                line = line_of(kind, ".training")
                named = f"'{name}'" if name else "the model itself"
                return (f"\n  the first module whose mode has another effect is {named} ({kind.__name__})" +
                        (f"\n  at {line}" if line else ""))
    except (KeyError, RuntimeError):  # The file has other modules, or one cannot run so.
        pass
    return ""


def is_other_mode(subject, file, inputs, names):
    """Returns whether the outputs differ if the modules of these names alone are in evaluation."""
    results = []
    for side in (subject.train(), file.train()):
        modules = dict(side.named_modules(remove_duplicate=False))
        for name in names:
            modules[name].training = False
        seed()
        results.append([output.detach() for output in flat(side(*inputs))])
    tolerance = TOLERANCES[subject.dtype]
    return not all(torch.allclose(one.float(), other.float(), tolerance, tolerance, equal_nan=True) for one, other in zip(*results))


def owner(model, off):
    """Returns a text: a module with a parameter or buffer of `off`, and the line of the author's forward that calls it. It
    is the one that differs most. But if the loss is right, it is the last one with a wrong gradient, because gradients are
    wrong before the reason and right behind it. Empty if the loss alone differs."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    times = collections.Counter(map(id, parameters.values()))  # A tied parameter is at several places.
    names = [name for name in (quoted.strip("'") for quoted in off if quoted != LOSS) if times[id(parameters.get(name))] <= 1]
    if not names:
        return ""
    gradients = [name for name in names if name in parameters]
    is_last = LOSS not in off and len(gradients) > 0
    name = gradients[-1] if is_last else max(names, key=lambda name: off[f"'{name}'"])
    path, _, attribute = name.rpartition(".")
    kind = type(model.get_submodule(path)).__name__
    which = "last module with another gradient" if is_last else "module with the largest difference"
    text = f"\n  the {which} is '{path}' ({kind})"
    while True:
        if line := line_of(type(model.get_submodule(path)), "." + attribute):
            return f"{text}\n  at {line}"
        if not path:
            return text
        path, _, attribute = path.rpartition(".")


def line_of(kind, text):
    """Returns "FILE:LINE: SOURCE" of the first line with `text` in the class's forward, or of its beginning. Empty if the
    forward is not the author's."""
    forward = inspect.unwrap(getattr(kind, "forward", None))
    try:
        filename = inspect.getsourcefile(forward)
        lines, first = inspect.getsourcelines(forward)
    except (OSError, TypeError):
        return ""
    if filename is None or not is_authors(filename):
        return ""
    begin = next((i for i, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    number = next((i for i, line in enumerate(lines) if text in line), begin)
    return f"{filename}:{first + number}: {lines[number].strip()}"
