"""Runs graphs of torch.export with given tensors, and as accel runs them on CPUs."""

import contextlib
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
    """Whether accel switches autocast off for a node. Like src/import/graph.cpp it does not enter a module that is called from
    outside of its parent."""
    outer = ""
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        path = path.split("@")[0]
        if outer and not path.startswith(outer + "."):
            return False
        if str(kind).endswith(WITHOUT_AUTOCAST):
            return True
        outer = path
    return False


def on_cpu(module, autocast=None, is_inner=False):
    """Returns a copy of a graph module that computes as accel does on CPUs, under autocast to the dtype `autocast` unless that is
    None. Blocks with autocast for another device are for CPUs, and assertions of the dtypes that were recorded are not in it."""
    graph = copy.deepcopy(module.graph)
    for node, original in zip(graph.nodes, module.graph.nodes, strict=True):
        node.name = original.name  # A copy may give other names.
    module = torch.fx.GraphModule(module, graph)
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
        elif node.op == "get_attr" and isinstance(inner := getattr(module, node.target), torch.fx.GraphModule):
            setattr(module, node.target, on_cpu(inner, autocast, is_inner=True))
        elif getattr(node.target, "__name__", "") == "wrap_with_autocast":
            node.args = ("cpu", *node.args[1:])
    if autocast is not None and not is_inner:
        set_autocast(graph, autocast)
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


@contextlib.contextmanager
def without_autocast():
    """Switches autocast off, and leaves it afterwards as it was, even if a graph has switched it on and failed."""
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    depth = torch.autocast_increment_nesting()
    torch.set_autocast_enabled("cpu", False)
    try:
        yield
    finally:
        while torch.autocast_decrement_nesting() >= depth:
            pass
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])
        torch.set_autocast_cache_enabled(before[2])
