"""Tensor parallelism: the plan that transformers has for a model, and a record that is right with whole weights and with
those of one rank.

A rank of several has a part of some weights: of rows (`colwise`) or of columns (`rowwise`). The model is recorded with such
weights, too. What Python computed from the sizes of the weights, such as the number of heads in a reshape, differs between
the two records. These numbers become -1, which is right in both."""

import contextlib
import dataclasses
import math
import re
import sys
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from .inputs import tensors

# The dimension of a weight that ranks share. What stands between the two is cut, and all other styles take and give whole
# tensors.
CUT = {"colwise": 0, "rowwise": 1}
WHOLE = ("colwise_gather_output", "rowwise_split_input", "embedding_rowwise", "replicated_with_grad_allreduce")
aten = torch.ops.aten
WITH_SIZES = (aten.expand.default, aten.reshape.default, aten.view.default)


class Unsuited(Exception):
    """The reason why a file has no plan."""


@dataclasses.dataclass
class Plan:
    """What a file says about tensor parallelism."""

    styles: dict[str, str]  # The styles of transformers by the names of modules, in which `*` stands for a number.
    heads: int  # It is right for every number of ranks that divides this one.


def pattern_of(name):
    """Returns a name with `*` for each number between its dots."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def styles_of(model):
    """Returns the plan of a model of transformers, as far as the model has the modules. It is empty if there is none."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return {}
    there = {pattern_of(name) for name, _ in (*model.named_modules(), *model.named_parameters(remove_duplicate=False))}
    return {pattern: style for pattern, style in sorted((getattr(model, "tp_plan", None) or {}).items()) if pattern in there}


def require_known(model, styles):
    for pattern, style in styles.items():
        if style not in CUT and style not in WHOLE:
            raise Unsuited(f"transformers' plan has '{pattern}: {style}', a style that accel does not know")
    for name, module in model.named_modules():
        if styles.get(pattern_of(name)) in CUT and not isinstance(module, torch.nn.Linear):
            raise Unsuited(f"transformers' plan cuts '{name}', a {type(module).__name__} and not a linear")


def smallest_size(model):
    """Returns the smallest number of ranks that can share the heads."""
    config = model.config.get_text_config()
    heads = [getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")]
    count = math.gcd(*(number for number in heads if isinstance(number, int)))
    if count == 1:
        raise Unsuited("ranks share whole heads, and the model has one head of keys and values"
                       if 1 in heads else "ranks share whole heads, and no number divides those of the queries and of the keys")
    return next((size for size in range(2, count + 1) if count % size == 0), 2)


@contextlib.contextmanager
def local_weights(model, styles, size):
    """Gives the modules the parameters of one of `size` ranks. They have no values."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    made, before, features = {}, [], []

    def local(name, key, parameter, dim):
        shape = list(parameter.shape)
        if dim is not None and dim < len(shape):
            if shape[dim] % size:
                raise Unsuited(f"'{name}.{key}' has {shape[dim]} {'columns' if dim else 'rows'}, which {size} ranks cannot share")
            shape[dim] //= size
        if id(parameter) not in made:
            with mode:
                made[id(parameter)] = torch.nn.Parameter(torch.empty(shape, dtype=parameter.dtype), requires_grad=parameter.requires_grad)
        if list(made[id(parameter)].shape) != shape:
            raise Unsuited(f"'{name}.{key}' is tied to a parameter that ranks share otherwise")
        return made[id(parameter)]

    try:
        for name, module in model.named_modules():
            dim = CUT.get(styles.get(pattern_of(name)))
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    before.append((module, key, parameter))
                    module._parameters[key] = local(name, key, parameter, dim)
            if dim is not None:
                features.append((module, module.out_features, module.in_features))
                module.out_features, module.in_features = module.weight.shape
        yield
    finally:
        for module, key, parameter in before:
            module._parameters[key] = parameter
        for module, rows, columns in features:
            module.out_features, module.in_features = rows, columns


def record_with_local_weights(subject, styles, size):
    free = tuple({dim: torch.export.Dim.AUTO for dim, name in enumerate(item.dims) if name} for item in subject.inputs)
    example = tuple(tensors(subject.inputs, {name: size.recorded for name, size in subject.sizes.items()}, 0))
    with local_weights(subject.model, styles, size), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(subject.train(), example, dynamic_shapes=free, strict=False)
        except Exception as error:  # Whatever the author's code raises.
            raise Unsuited(f"its code fails with the weights of one of {size} ranks: {type(error).__name__}: "
                           f"{str(error).strip().splitlines()[0]}") from None


def graphs_of(exported):
    return [module.graph for module in exported.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]


def module_of(node):
    """Returns the name of the module that called the operator."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return stack[-1][0] if stack else ""


class Comparison:
    """The record with whole weights beside that with the weights of one of `size` ranks."""

    def __init__(self, whole, local, size):
        self.size = size
        self.twins = {}  # From nodes with local weights to those with whole ones.
        self.cut = set()  # The sizes of the dimensions that ranks share.
        self.changes = []  # Nodes and their new sizes.
        pairs = list(zip(graphs_of(whole), graphs_of(local)))
        if len(graphs_of(whole)) != len(graphs_of(local)) or any(len(one.nodes) != len(other.nodes) for one, other in pairs):
            raise Unsuited(f"its code takes other operators with the weights of one of {size} ranks")
        for one, other in pairs:
            for node, twin in zip(one.nodes, other.nodes):
                self.compare(node, twin)

    def compare(self, node, twin):
        if node.op != twin.op or (node.op == "call_function" and node.target != twin.target):
            raise Unsuited(f"its code takes {twin.target} for {node.target} in '{module_of(node)}' with the weights of one of "
                           f"{self.size} ranks")
        self.twins[twin] = node
        self.note_cut(node, twin)
        leaves, others = (pytree.tree_flatten((item.args, item.kwargs))[0] for item in (node, twin))
        if len(leaves) == len(others) and all(map(self.is_same, leaves, others)):
            return
        sizes = self.freed(node, twin)
        if sizes is None:
            raise Unsuited(f"in '{module_of(node)}' {node.target} depends on the number of ranks in a way that one -1 does not "
                           f"say: its numbers are {shown(node)}, and with the weights of one of {self.size} ranks {shown(twin)}")
        self.changes.append((node, sizes))

    def is_same(self, one, other):
        if isinstance(other, torch.fx.Node):
            return self.twins.get(other) is one
        return type(one) is type(other) and one == other

    def note_cut(self, node, twin):
        values, others = (pytree.tree_leaves(item.meta.get("val")) for item in (node, twin))
        for value, other in zip(values, others):
            if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
                continue
            for one, two in zip(value.shape, other.shape):
                if isinstance(one, int) and isinstance(two, int) and one != two:
                    if one != two * self.size:
                        raise Unsuited(f"in '{module_of(node)}' a size of {node.target} is {one}, with the weights of one of {self.size} "
                                       f"ranks {two}")
                    self.cut.add(one)

    def freed(self, node, twin):
        """Returns the sizes of an operator with -1 in the only place that depends on the number of ranks, or None if there
        are several, or if -1 would be another size there."""
        if node.target not in WITH_SIZES or len(node.args) != 2 or len(node.args[1]) != len(twin.args[1]):
            return None
        sizes = list(node.args[1])
        places = [place for place, pair in enumerate(zip(sizes, twin.args[1])) if not self.is_same(*pair)]
        if not self.is_same(node.args[0], twin.args[0]) or node.kwargs != twin.kwargs or len(places) != 1 or -1 in sizes:
            return None
        place = places[0]
        if node.target is aten.expand.default:  # There -1 keeps the size that the input has.
            given = node.args[0].meta["val"].shape
            if len(given) != len(sizes) or given[place] != sizes[place]:
                return None
        sizes[place] = -1
        return sizes


def shown(node):
    return str([item if isinstance(item, int) else "?" for item in pytree.tree_leaves(node.args[1:])])


def plan_for(exported, subject):
    """Returns the Plan of a record, whose sizes it changes to -1 where they depend on the number of ranks. Returns None if
    transformers has no plan. Raises Unsuited, and changes nothing, if no record is right for several numbers of ranks."""
    styles = styles_of(subject.model)
    if not styles:
        return None
    require_known(subject.model, styles)
    linears = {module_of(node) for graph in graphs_of(exported) for node in graph.nodes if node.target is aten.linear.default}
    split = []
    for name, module in subject.model.named_modules():
        style = styles.get(pattern_of(name))
        if style in CUT and name not in linears:
            raise Unsuited(f"transformers' plan cuts '{name}', which the record does not compute with a linear")
        if style == "rowwise_split_input":
            split.append(module.in_features)
    compared = None
    if not split and not CUT.keys() & set(styles.values()):
        raise Unsuited("transformers' plan cuts no layer of it")
    if CUT.keys() & set(styles.values()):
        size = smallest_size(subject.model)
        compared = Comparison(exported, record_with_local_weights(subject, styles, size), size)
    for node, sizes in compared.changes if compared else ():
        node.args = (node.args[0], sizes)
    exported.graph_module.recompile()
    return Plan(styles, math.gcd(*(compared.cut if compared else ()), *split))
