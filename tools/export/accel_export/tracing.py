"""Records a model by torch.jit.trace, and refuses what tracing would freeze."""

import linecache
import warnings

import torch

from .inputs import tensors
from .refused import Refused, named

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


def require_no_frozen_choice(caught, accepted, words):
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
        f"\nhint: write .pt2 instead; or, if a line decides nothing that training depends on, say so with {words.accept}; "
        "the comparison with the model's own loss and gradients is made all the same")


def record(subject, accepted=()):
    """Returns the traced model. Tracing runs the model on the device of its parameters, which may be meta, so the
    buffers move there. The traced model gets the original buffers, and the model their values."""
    model = subject.model.train()
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
    require_no_frozen_choice(caught, accepted, subject.words)
    with torch.no_grad():
        for name, buffer in model.named_buffers():  # Statistics of a batch norm have changed.
            if name in buffers:
                buffer.copy_(buffers[name])
    for name, buffer in buffers.items():
        owner_of(traced._c, name).setattr(name.rpartition(".")[2], buffer)
    return traced


def owner_of(module, name):
    for part in name.split(".")[:-1]:
        module = module.getattr(part)
    return module


def save(traced, subject, path, notes):
    """Writes the file. Its parameters are float32, even if the model was traced in another dtype."""
    computed = {}  # The model has the same parameters as the traced one.
    for name, parameter in traced.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            computed[name] = parameter.data
            parameter.data = subject.masters[name] if name in subject.masters else parameter.data.float()
    with named("torch.jit.save", subject.model, lambda error: f"try .pt2 or {subject.words.weights}"):
        torch.jit.save(traced, str(path), _extra_files={"accel.json": notes})
    for name, parameter in traced.named_parameters():
        if name in computed:
            parameter.data = computed[name]
