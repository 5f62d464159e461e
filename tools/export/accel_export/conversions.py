"""How the tensors of a Hugging Face directory become the parameters and buffers of a transformers model.

transformers 5 gives some tensors another name or another shape when it loads them: one tensor per expert becomes one
tensor of all experts, `backbone.` becomes `model.`. conversions_of() finds out what it does with the tensors of one
model. It takes the way back, which is that of save_pretrained, and gives it tensors that have no values but remember
where they come from. So transformers' own code decides, and no rule of it is repeated here.

The result is the list `weight_conversions` of a model file's accel.json. docs/formats.md describes it.
"""

import json
import pathlib
from dataclasses import dataclass, replace

import torch


class Unsupported(Exception):
    """transformers converts a tensor in a way that boxes of tensors cannot describe; the text says which."""


@dataclass(frozen=True)
class Part:
    """A box of the tensor `name`, and where it lies in a recorded tensor."""
    name: str
    begin: tuple  # The box's first element in the tensor `name`.
    sizes: tuple  # The sizes of the box, in the dimensions of the tensor `name`.
    at: tuple     # The box's first element in the recorded tensor.
    dims: tuple   # For each dimension of the recorded tensor, that of the tensor `name`, or -1 for a new one of size 1.

    def size(self, dim):
        return 1 if self.dims[dim] < 0 else self.sizes[self.dims[dim]]


def changed(values, index, value):
    return values[:index] + (value,) + values[index + 1:]


def inserted(values, index, value):
    return values[:index] + (value,) + values[index:]


def removed(values, index):
    return values[:index] + values[index + 1:]


def narrowed(parts, dim, begin, size):
    """The parts of elements [begin, begin + size) of `dim`, which become elements [0, size)."""
    result = []
    for part in parts:
        first = max(part.at[dim], begin)
        last = min(part.at[dim] + part.size(dim), begin + size)
        if first >= last:
            continue
        part_begin, sizes, source = part.begin, part.sizes, part.dims[dim]
        if source >= 0:
            part_begin = changed(part_begin, source, part_begin[source] + first - part.at[dim])
            sizes = changed(sizes, source, last - first)
        result.append(replace(part, begin=part_begin, sizes=sizes, at=changed(part.at, dim, first - begin)))
    return result


def without_dim(parts, dim):
    return [replace(part, at=removed(part.at, dim), dims=removed(part.dims, dim)) for part in parts]


def swapped(values, a, b):
    values = list(values)
    values[a], values[b] = values[b], values[a]
    return tuple(values)


class Recorded(torch.Tensor):
    """A tensor on the meta device that remembers of which parts of named tensors it consists."""

    @staticmethod
    def of(tensor, parts):
        recorded = tensor.as_subclass(Recorded)
        recorded.parts = parts
        return recorded

    @staticmethod
    def whole(name, shape):
        zeros = (0,) * len(shape)
        return Recorded.of(torch.empty(tuple(shape), device="meta"),
                           [Part(name, zeros, tuple(shape), zeros, tuple(range(len(shape))))])

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            return Recorded.of(result, described(parts_of, function.__name__, result, *args, **(kwargs or {})))
        if isinstance(result, (list, tuple)) and result and isinstance(result[0], torch.Tensor):
            return described(pieces_of, function.__name__, result, *args, **(kwargs or {}))
        return result


def described(how, name, result, tensor, *args, **more):
    """Returns how(...). Raises Unsupported for an operation that is given in a form that `how` does not know."""
    try:
        return how(name, result, tensor, *args, **more)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise Unsupported(f"torch.{name} with the arguments {(*args, *more.values())}") from error


def parts_of(name, result, tensor, *args, dim=None, dim0=None, dim1=None, **_):
    """The parts of `result`, which is one tensor that the operation `name` made of `tensor`."""
    if name in ("contiguous", "detach", "clone") or (name in ("view", "reshape") and result.shape == tensor.shape):
        return tensor.parts
    if name in ("stack", "cat"):
        dim = (args[0] if args else dim or 0) % result.dim()
        parts, begin = [], 0
        for item in tensor:
            for part in item.parts:
                parts.append(replace(part, at=inserted(part.at, dim, begin), dims=inserted(part.dims, dim, -1))
                             if name == "stack" else replace(part, at=changed(part.at, dim, part.at[dim] + begin)))
            begin += 1 if name == "stack" else item.shape[dim]
        return parts
    if name == "transpose":
        a, b = (value % tensor.dim() for value in (args or (dim0, dim1)))
        return [replace(part, at=swapped(part.at, a, b), dims=swapped(part.dims, a, b)) for part in tensor.parts]
    if name == "squeeze":
        given = args[0] if args else dim
        given = range(tensor.dim()) if given is None else given if isinstance(given, (tuple, list)) else [given]
        parts = tensor.parts
        for dim in sorted((value % tensor.dim() for value in given), reverse=True):
            parts = without_dim(parts, dim) if tensor.shape[dim] == 1 else parts
        return parts
    raise Unsupported(f"torch.{name} of '{tensor.parts[0].name if isinstance(tensor, Recorded) else tensor}'")


def pieces_of(name, results, tensor, *args, dim=None, **_):
    """Records of `results`, into which the operation `name` cut `tensor`."""
    if name not in ("chunk", "split", "unbind"):
        raise Unsupported(f"torch.{name} of '{tensor.parts[0].name}'")
    given = args[0 if name == "unbind" else 1:]
    dim = (given[0] if given else dim or 0) % tensor.dim()
    recorded, begin = [], 0
    for result in results:
        size = 1 if name == "unbind" else result.shape[dim]
        parts = narrowed(tensor.parts, dim, begin, size)
        recorded.append(Recorded.of(result, without_dim(parts, dim) if name == "unbind" else parts))
        begin += size
    return tuple(recorded)


def used_conversions(model, names):
    """transformers' conversions for a directory with tensors of these names: those that rename one of them."""
    from transformers import core_model_loading as loading
    from transformers.conversion_mapping import get_model_conversion_mapping

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, loading.WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, loading.WeightConverter)]

    def renamed(name, without=None):
        return loading.rename_source_key(
            name, [entry for entry in renamings if entry is not without], [entry for entry in converters if entry is not without])

    names = sorted(names, key=loading.dot_natural_key)
    everything = [renamed(name) for name in names]
    if all(hasattr(entry, "was_used") for entry in mapping):
        return [entry for entry in mapping if entry.was_used()]
    # Early releases of transformers 5 do not note it.
    return [entry for entry in mapping if [renamed(name, without=entry) for name in names] != everything]


def on_disk(model, names):
    """Recorded tensors by their names on disk, as save_pretrained would write them."""
    from transformers.core_model_loading import revert_weight_conversion

    before = getattr(model, "_weight_conversions", None)
    if names is not None:
        model._weight_conversions = used_conversions(model, names)
    try:
        return revert_weight_conversion(
            model, {name: Recorded.whole(name, tensor.shape) for name, tensor in model.state_dict().items()})
    finally:
        if before is not None:
            model._weight_conversions = before
        elif hasattr(model, "_weight_conversions"):
            del model._weight_conversions


def spelled(name, model, names):
    """The name as it stands in `names`: transformers adds or takes away the prefix of the base model where it must."""
    prefix = f"{model.base_model_prefix}."
    for other in (name, name.removeprefix(prefix), prefix + name):
        if names is not None and other in names:
            return other
    return name


def conversions_of(model, names=None):
    """Returns a list of dicts, one for each tensor of model.state_dict() that has another name or shape on disk.

    `names` are the names of the tensors in the directory that the model comes from. Old names that transformers still
    reads, such as LayerNorm.gamma, and the prefix of a base model follow from them. Without `names`, the names are those
    of the directory from which from_pretrained loaded the model, or those that save_pretrained would write.

    The model may be on the meta device. Raises Unsupported if transformers does something else with a tensor than
    stacking, concatenating, cutting and transposing. Models that are not of transformers, and those that PEFT wraps, have
    no conversions.
    """
    try:
        import transformers.core_model_loading  # noqa: F401  transformers 4 converts nothing.
    except ImportError:
        return []
    if not isinstance(model, transformers.PreTrainedModel):
        return []
    names = None if names is None else set(names)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    parts = {}
    try:
        written = on_disk(model, names)
    except (AttributeError, ImportError, TypeError) as error:  # The code of another release.
        raise Unsupported(f"tensors in a way that is not known ({error})") from error
    for name, recorded in written.items():
        source = spelled(name, model, names)
        for part in recorded.parts:
            parts.setdefault(part.name, []).append((source, tuple(recorded.shape), part))
    return [entry for name, shape in shapes.items() if (entry := entry_of(name, shape, parts.get(name, []))) is not None]


def names_in(directory):
    """Returns the names of the tensors in a directory's safetensors, or None if it has none."""
    from safetensors import safe_open

    directory = pathlib.Path(directory)
    index = directory / "model.safetensors.index.json"
    if index.exists():
        return set(json.loads(index.read_text())["weight_map"])
    if not (directory / "model.safetensors").exists():
        return None
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        return set(file.keys())


def entry_of(name, shape, parts):
    """The conversion of the tensor `name`, of which each part says where it lies in a tensor on disk. None if the tensor
    is the same on disk."""
    if sum(torch.Size(part.sizes).numel() for _, _, part in parts) != torch.Size(shape).numel():
        raise Unsupported(f"the parts on disk of '{name}'")
    whole = tuple(range(len(shape)))
    if len(parts) == 1 and parts[0][1] == shape and parts[0][2].dims == whole:
        return None if parts[0][0] == name else {"name": name, "from": parts[0][0]}
    return {"name": name, "parts": [entry_of_part(source, part) for source, _, part in sorted(parts, key=lambda p: p[2].begin)]}


def entry_of_part(source, part):
    """A part seen from the model: `part` says which box of the model's tensor lies where in the tensor `source`."""
    rank = len(part.sizes)
    return {"from": source, "begin": list(part.at), "sizes": [part.size(dim) for dim in range(len(part.dims))],
            "at": list(part.begin), "dims": [part.dims.index(dim) if dim in part.dims else -1 for dim in range(rank)]}
