"""Runs graphs of torch.export with given tensors, and under autocast as accel runs them."""

import copy

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

WITHOUT_AUTOCAST = "RotaryEmbedding"  # The end of the names of classes that accel runs without (docs/design/011).


class Interpreter(torch.fx.Interpreter):
    """Runs a graph with the tensors `own` for its attributes, and keeps the values of the nodes with the `names`."""

    def __init__(self, module, own=(), names=()):
        super().__init__(module)
        self.own, self.names, self.kept = dict(own), set(names), {}

    def get_attr(self, target, args, kwargs):
        return self.own[target] if target in self.own else super().get_attr(target, args, kwargs)

    def run_node(self, node):
        result = super().run_node(node)
        if node.name in self.names:
            self.kept[node.name] = result
        return result


def is_without(node):
    classes = [str(kind) for _, kind in (node.meta.get("nn_module_stack") or {}).values()]
    return any(name.endswith(WITHOUT_AUTOCAST) for name in classes)


def under_autocast(module, dtype, sets=True):
    """Returns a copy of a graph module, whose operators run under autocast to `dtype` on CPUs; the module itself if that is None.
    Assertions of the dtypes that were recorded are not in it. With `sets` false autocast is on or off as around a call."""
    if dtype is None:
        return module
    module = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
        elif node.op == "get_attr" and isinstance(inner := getattr(module, node.target), torch.fx.GraphModule):
            says_so = any(getattr(user.target, "__name__", "") == "wrap_with_autocast" for user in node.users)
            setattr(module, node.target, under_autocast(inner, dtype, sets and not says_so))
    if sets:
        set_autocast(module.graph, dtype)
    module.recompile()
    return module


def set_autocast(graph, dtype):
    context, without = None, None
    for node in list(graph.nodes):
        if node.op == "call_function" and is_without(node) != without:
            with graph.inserting_before(node):
                if context is not None:
                    graph.call_function(_exit_autocast, (context,))
                without = is_without(node)
                context = graph.call_function(_enter_autocast, ("cpu", dtype, not without, False))
    if context is not None:
        with graph.inserting_before(graph.output_node()):
            graph.call_function(_exit_autocast, (context,))
