"""Records a model by torch.jit.trace, and refuses what tracing would freeze."""

import linecache
import warnings

import torch

from . import structure
from .inputs import tensors
from .refused import Refused, named, place_in_error

# The tracer warns about these lines, but they have no effect for a causal mask without padding, or refuse an input. An
# entry is the end of the file's name and text from the line.
HARMLESS = [
    ("transformers/masking_utils.py", ""),
    ("transformers/integrations/sdpa_attention.py", ""),
    ("torch/nn/functional.py", "if padding_idx >= weight.size(0)"),
    ("torch/nn/functional.py", "if size_prods == 1:"),  # Batch norm refuses a single value per channel.
    ("torch/nn/modules/instancenorm.py", "if input.size(feature_dim) != self.num_features:"),
    ("torch/_tensor.py", "split_size = int(split_size)"),  # Splits heads, in gptj and codegen.
    ("transformers/models/gpt_neo/modeling_gpt_neo.py", "mask_value = torch.tensor(mask_value"),
]


def is_harmless(warning, line, accepted):
    place = f"{warning.filename}:{warning.lineno}"
    return (any(warning.filename.endswith(name) and text in line for name, text in HARMLESS)
            or any(place.endswith(name) for name in accepted))


def require_no_frozen_choice(caught, accepted, words, on_meta):
    """Raises Refused for the tracer's warnings that are not harmless. Lists each place once, with its source line."""
    places = {}
    for warning in caught:
        line = linecache.getline(warning.filename, warning.lineno).strip()
        if issubclass(warning.category, torch.jit.TracerWarning) and not is_harmless(warning, line, accepted):
            message = str(warning.message).split(". ")[0]
            places[f"{warning.filename}:{warning.lineno}"] = f"{message}\n    {line}"
    if not places:
        return
    listed = "\n".join(f"  {place}: {text}" for place, text in places.items())
    raise Refused(
        "tracing would freeze what these lines decide, as the traced example took them:\n" + listed +
        (f"\nhint: add {words.weights}; the structure of a large model is traced without values, which may be the reason" if on_meta else
         f"\nhint: write .pt2 instead; or, if a line decides nothing that training depends on, say so with {words.accept}; "
        "the comparison with the model's own loss and gradients is made all the same"))


def record(subject, accepted=()):
    """Returns the traced model. Tracing runs the model on the device of its parameters, which may be meta, so the
    buffers move there. The traced model gets the original buffers, and the model their values."""
    model = subject.train()
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    device = next(model.parameters()).device
    model.to(device)
    recorded = {name: size.recorded for name, size in subject.sizes.items()}
    example = tuple(tensor.to(device) for tensor in tensors(subject.inputs, recorded, 0))
    hint = ("some operations do not run on the meta device, where a file of the structure alone is made: try .pt2 or "
            + subject.words.weights if device.type == "meta" else "this model cannot be traced; try .pt2")
    with named("torch.jit.trace", model, lambda error: hint), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(model, example, check_trace=False, strict=False)
    require_no_frozen_choice(caught, accepted, subject.words, device.type == "meta")
    with torch.no_grad():
        for name, buffer in model.named_buffers():  # Statistics of a batch norm have changed.
            if name in buffers:
                buffer.copy_(buffers[name])
    for name, buffer in buffers.items():
        owner_of(traced._c, name).setattr(name.rpartition(".")[2], buffer)
    return traced.train()  # A constant that differs from the flag of its module stays, as one of a module left in evaluation.


def owner_of(module, name):
    for part in name.split(".")[:-1]:
        module = module.getattr(part)
    return module


def require_values(traced, words):
    """Raises Refused for constants on the meta device, which tracing has recorded there."""
    for name, module in traced.named_modules():
        for node in module._c._get_method("forward").graph.findAllNodes("prim::Constant") if module._c._has_method("forward") else []:
            value = node.output().toIValue()
            if isinstance(value, torch.Tensor) and value.device.type == "meta":
                place = place_in_error(node.sourceRange())
                raise Refused(f"module '{name}' computes a tensor that the file would hold as a constant, and a structure of a large "
                              "model is traced on the meta device, where it has no value" + (f"\n  at {place}" if place else "") +
                              f"\nhint: add {words.weights}")


def save(traced, subject, path, notes, with_values):
    """Writes the file. Its parameters are float32, even if the model was traced in another dtype, or have no values."""
    require_values(traced, subject.words)
    for name, value in structure.stored_values(subject, with_values).items():
        owner_of(traced._c, name).setattr(name.rpartition(".")[2], value)
    def hint(error):
        return ("replace the torch.autograd.Function by operators of torch: a file does not hold its gradient"
                if "Python function call" in str(error) else f"try .pt2 or {subject.words.weights}")

    with named("torch.jit.save", subject.model, hint):
        torch.jit.save(traced, str(path), _extra_files={"accel.json": notes})
