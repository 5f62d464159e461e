"""Finds the first module whose output is not that of the record, by hooks on the model and by running the graph."""

import random

import torch

from .check import TOLERANCES
from .refused import place_in_graph, quiet


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


def first_difference(program, subject, inputs, training):
    """Returns a text for a message: the first module whose output no node of it has, and the line of its last node.
    The text is empty if the graph has every output, or cannot run."""
    if not training:
        return ""  # The graph itself is that of training; the file follows the mode.
    subject.model.train()
    calls = outputs_of_modules(subject.model, inputs)
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
