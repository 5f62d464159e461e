"""The extra file accel.json: what a file of the model does not say by itself."""

import json

import torch

from . import adapter, structure
from .refused import Refused

NAMES_OF_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def classes_of(model):
    return {type(module).__name__ for module in model.modules()}


def repeated_layers(model):
    """Returns the classes of the members of the outermost lists of modules that are of one class."""
    layers, inside = [], []
    for name, module in model.named_modules():
        if any(name.startswith(outer) for outer in inside):
            continue
        members = list(module.children()) if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) else []
        kinds = {type(member) for member in members}
        is_list = isinstance(module, torch.nn.ModuleList) or len(members) > 1
        if members and is_list and len(kinds) == 1 and any(True for _ in members[0].children()):
            layers.append(kinds.pop().__name__)
            inside.append(name + ".")
    return sorted(set(layers))


def layer_classes(model, words, given=None):
    """Returns the classes to wrap: those that the user gave, those that transformers names and that are in the model, or
    those of repeated layers. Raises Refused if there are none."""
    there = classes_of(model)
    if given is not None:
        for name in given:
            if name not in there:
                raise Refused(f"{words.layers} names '{name}', and the model has no module of this class; it has "
                              f"{', '.join(sorted(there))}")
        return sorted(given)
    named = sorted(set(getattr(model, "_no_split_modules", None) or []) & there)
    layers = named or repeated_layers(model)
    if not layers:
        raise Refused("the model has no list of layers of one class, and names none\nhint: name the classes of its layers with "
                      f"{words.some_layers}, or say {words.no_layers}")
    return layers


def max_positions(model):
    """Returns the most tokens of a sequence that the configuration of a model of transformers names, or None."""
    config = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else None
    most = getattr(text, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def text_of(subject, with_values, is_program, keeps_documents_apart=None, plan=None):
    """Returns the content of accel.json."""
    model = subject.model
    persistent = set(model.state_dict())
    notes = {"layer_classes": subject.layers,
             "non_persistent": [name for name, _ in model.named_buffers() if name not in persistent],
             "inputs": [item.name for item in subject.inputs],
             "outputs": subject.outputs}
    if is_program and not with_values:
        notes["ties"] = structure.ties(model)
    if subject.conversions:
        notes["weight_conversions"] = subject.conversions
    if subject.dtype != torch.float32:
        notes["dtype"] = NAMES_OF_DTYPES[subject.dtype]
    if subject.shifts_labels is not None:
        notes["shifts_labels"] = subject.shifts_labels
    if keeps_documents_apart is not None:
        notes["keeps_documents_apart"] = keeps_documents_apart
    if (positions := max_positions(model)) is not None:
        notes["max_positions"] = positions
    if plan is not None:
        notes["tp_plan"] = plan.styles
        notes["tp_heads"] = plan.heads
    if (config := adapter.config_of(model)) is not None:
        notes["adapter_config"] = config
    return json.dumps(notes)
