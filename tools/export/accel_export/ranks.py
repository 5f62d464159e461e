"""Computes a record as the ranks of tensor parallelism do, all in this process, and compares the result with the whole one."""

import torch
from torch.utils import _pytree as pytree

from .compiled import is_without_gradients
from .inputs import tensors
from .tensor_parallel import Unsuited, aten, module_of, pattern_of

# Sums are in another order. A head or a row in the wrong place differs by far more.
TOLERANCE = 1e-4  # Relative to the largest value.


class Cut(list):
    """The tensors of the ranks, in their order."""


def is_cut(value):
    return isinstance(value, Cut)


SUMMED = "replicated_with_grad_allreduce"


class Ranks(torch.fx.Interpreter):
    """Runs a record. What all ranks have alike is computed once."""

    def __init__(self, exported, styles, size):
        super().__init__(exported.graph_module)
        self.styles, self.size = styles, size
        used = {node.target for node in exported.graph.find_nodes(op="placeholder") if node.users}
        self.trained = {key: name for key, name in exported.graph_signature.inputs_to_parameters.items()
                        if key in used and exported.state_dict[name].requires_grad}
        self.origins = {}  # The parameters that a node's value is differentiated by.
        self.partial = set()  # Those of which each rank computes a part of the gradient.

    def run_node(self, node):
        result = self.computed(node)
        leaves = [leaf[0] if is_cut(leaf) else leaf for leaf in pytree.tree_leaves(result, is_leaf=is_cut)]
        is_differentiated = any(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in leaves)
        origins = {self.trained[node.target]} if node.op == "placeholder" and node.target in self.trained else set()
        if is_differentiated and node.target is not aten.detach.default and not is_without_gradients(node):
            origins = origins.union(*(self.origins[one] for one in node.all_input_nodes))
        self.origins[node] = origins
        return result

    def note_partial(self, node):
        """An operator has a part of a value on each rank. So has the gradient of what it has as a whole beside it."""
        for one in node.all_input_nodes:
            parts = pytree.tree_leaves(self.env[one], is_leaf=is_cut)  # Several, of an operator such as chunk.
            if not any(map(is_cut, parts)) and self.origins[one]:
                names = sorted(name for name in self.origins[one] if not self.is_summed(name))
                if names:
                    raise Unsuited(f"in '{module_of(node)}' {node.target} takes a part on each rank and something whole, and "
                                   f"transformers' plan does not sum the gradient of '{names[0]}' over the ranks")
                self.partial |= self.origins[one]

    def is_summed(self, parameter):
        """Whether a module around the parameter has the style."""
        names = parameter.split(".")
        return any(self.styles.get(pattern_of(".".join(names[:count]))) == SUMMED for count in range(1, len(names)))

    def require_parts(self):
        """A gradient that is whole on each rank must not be summed."""
        for name in self.trained.values():
            if self.is_summed(name) and name not in self.partial:
                raise Unsuited(f"transformers' plan sums the gradient of '{name}' over the ranks, and each has all of it")

    def computed(self, node):
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if node.target is aten.dropout.default:  # Its random numbers are those of no rank.
            return args[0]
        if node.target is aten.scaled_dot_product_attention.default and len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        style = self.styles.get(pattern_of(module_of(node))) if node.target is aten.linear.default else None
        if style in LINEARS:
            return LINEARS[style](self.size, module_of(node), *args)
        leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=is_cut)
        if node.op != "call_function" or not any(map(is_cut, leaves)):
            return getattr(self, node.op)(node.target, args, kwargs)
        self.note_partial(node)
        results = []
        for rank in range(self.size):
            own = [leaf[rank] if is_cut(leaf) else leaf for leaf in leaves]
            own_args, own_kwargs = pytree.tree_unflatten(own, spec)
            results.append(self.call_function(node.target, own_args, own_kwargs))
        if all(isinstance(result, (tuple, list)) for result in results):
            return type(results[0])(Cut(parts) for parts in zip(*results))
        return Cut(results)


def parts(tensor, size, dim):
    return [None] * size if tensor is None else torch.tensor_split(tensor, size, dim)


def require(holds, name, what):
    if not holds:
        raise Unsuited(f"transformers' plan gives '{name}' {what}")


def colwise(size, name, x, weight, bias=None):
    require(not is_cut(x), name, "an input of which each rank has a part, and it needs the whole one")
    return Cut(torch.nn.functional.linear(x, *own) for own in zip(parts(weight, size, 0), parts(bias, size, 0)))


def colwise_gather_output(*arguments):
    return torch.cat(colwise(*arguments), -1)


def rowwise(size, name, x, weight, bias=None):
    require(is_cut(x), name, "a whole input, and it needs the part of a rank")
    total = sum(torch.nn.functional.linear(*own) for own in zip(x, parts(weight, size, 1)))
    return total if bias is None else total + bias


def rowwise_split_input(size, name, x, weight, bias=None):
    require(not is_cut(x), name, "an input of which each rank has a part, and it needs the whole one")
    return rowwise(size, name, Cut(parts(x, size, -1)), weight, bias)


LINEARS = {"colwise": colwise, "colwise_gather_output": colwise_gather_output, "rowwise": rowwise,
           "rowwise_split_input": rowwise_split_input}


def values_of(exported, given):
    """Returns what the placeholders of the record stand for."""
    signature, given = exported.graph_signature, iter(given)
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    stored = {**exported.constants, **exported.state_dict}
    return [stored[names[node.name]] if node.name in names else next(given)
            for node in exported.graph.nodes if node.op == "placeholder"]


@torch.no_grad()
def check(exported, plan, subject, sizes):
    """Compares the outputs for inputs of these sizes with those of two and more ranks. Raises Unsuited if they differ."""
    values = values_of(exported, tensors(subject.inputs, sizes, 0))
    counts = [size for size in range(2, plan.heads + 1) if plan.heads % size == 0]
    expected = pytree.tree_leaves(Ranks(exported, {}, 1).run(*values))
    for size in sorted({counts[0], counts[-1]}) if counts else ():
        try:
            ranks = Ranks(exported, plan.styles, size)
            found = pytree.tree_leaves(ranks.run(*values), is_leaf=is_cut)
            ranks.require_parts()
        except RuntimeError as error:
            raise Unsuited(f"the record fails with the weights of one of {size} ranks: {str(error).strip().splitlines()[0]}") from None
        if any(map(is_cut, found)):
            raise Unsuited("an output of the model is one of which each rank has a part")
        for value, other in zip(found, expected):
            if isinstance(other, torch.Tensor) and other.is_floating_point() and other.numel() > 0:
                off = float((value - other).abs().max() / other.abs().max().clamp_min(1e-30))
                if not off <= TOLERANCE:
                    raise Unsuited(f"{size} ranks compute something else: the largest difference is {off:.2g} of the largest value")
