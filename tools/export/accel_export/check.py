"""Compares a file with its model: loss and gradients at several sizes, in training and in evaluation."""

import contextlib
import random
import warnings

import torch

from . import autocast, modes
from .inputs import tensors
from .interpret import without_autocast
from .refused import Refused, named, place_in_error
from .subject import CHANGED, name_of_length

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}  # Relative.
NOISE = 4  # A difference is also fine if it is at most so many times that which a rounding of the parameters makes.
LOSS = "the loss"  # Parameters and buffers have their names in quotes.
LARGEST_NOISE = 10  # No difference above so many tolerances is fine.

HINT = "it does not compute with parameters of this dtype; try {}, or {}"
FROZEN = ("a loop, a choice or a random number was frozen as the recorded example took it; write it with operators of torch, "
          "or turn it off")
FROZEN_MODE = ("evaluation would do what training does: in a record, dropout, batch norm and instance norm alone follow the mode; "
               "choose nothing else by self.training, or turn it off")
SCRIPTED = "; in TorchScript a module that torch.jit.script made still reads self.training"


def probe(outputs, names):
    """Returns a loss on which every element of the floating-point outputs has an effect of its own."""
    total = 0
    for name, output in zip(names, outputs):
        if not output.is_floating_point():
            continue
        output = output.float()
        generator = torch.Generator().manual_seed(output.numel())
        if output.dim() == 0:
            total = total + output
        elif name == "logits" and output.shape[-1] > 1:
            targets = torch.randint(output.shape[-1], output.shape[:-1], generator=generator)
            total = total + torch.nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten())
        else:
            total = total + (output * torch.rand(output.shape, generator=generator)).mean() + output.square().mean()
    return total


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def names_of(module, kind):
    return dict(getattr(module, kind)(remove_duplicate=False))


class Side:
    """The model or the file, with the values of its buffers before a call. `train` puts it into its mode of training; `call` runs
    it, if that is not `module` itself."""

    def __init__(self, module, names, train, call=None):
        self.module, self.names, self.train, self.call = module, names, train, call or module
        self.parameters = names_of(module, "named_parameters")
        self.buffers = names_of(module, "named_buffers")
        self.before = {name: buffer.clone() for name, buffer in self.buffers.items()}

    def restore(self):
        with torch.no_grad():
            for name, buffer in self.buffers.items():
                buffer.copy_(self.before[name])

    def run(self, inputs, training, look=None):
        """Returns loss, gradients and buffers of one forward and backward. Each call draws the same random numbers. `look` is
        called with the loss before the backward."""
        self.restore()
        if training:
            self.train()
        else:
            self.module.eval()
        for parameter in self.parameters.values():
            parameter.grad = None
        torch.manual_seed(1)
        random.seed(1)
        with without_autocast():
            loss = probe(flat(self.call(*inputs)), self.names)
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise Refused("no output of the model depends on a parameter that is trained")
        if look is not None:
            look(loss)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in self.parameters.items()}
        return loss.detach(), gradients, {name: buffer.clone() for name, buffer in self.buffers.items()}

    def run_perturbed(self, inputs, training):
        """Returns what `run` does with each parameter changed by a unit in its last place, up or down at random."""
        generator = torch.Generator().manual_seed(0)
        before = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        with torch.no_grad():
            for parameter in self.module.parameters():
                if parameter.is_floating_point():
                    perturb(parameter, generator)
        result = self.run(inputs, training)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(before[name])
        return result


def perturb(tensor, generator):
    """Changes each element by a unit in its last place, up or down at random."""
    signs = torch.randint(2, tensor.shape, generator=generator) * 2 - 1
    tensor.mul_((1 + signs * torch.finfo(tensor.dtype).eps).to(tensor.dtype))


def tolerated(tolerance, noise):
    """Returns the largest difference that is fine where a rounding of the parameters makes the difference `noise`."""
    return max(tolerance, min(NOISE * noise, LARGEST_NOISE * tolerance))


def difference(found, expected, floor):
    """Returns the largest difference, relative to the largest expected value or to `floor`, whichever is larger. The
    result is infinite if only one side has the gradient, or if the sizes differ."""
    if found is None or expected is None:
        return 0.0 if found is expected else float("inf")
    if found.shape != expected.shape:
        return float("inf")
    if torch.equal(found, expected):
        return 0.0
    if found.dtype.itemsize < 4:
        found, expected = found.float(), expected.float()
    worst = (found - expected).abs().max() / expected.abs().max().clamp_min(max(floor, 1e-30))
    return float("inf") if worst.isnan() else worst.item()


@contextlib.contextmanager
def kept_zeros(model):
    """Parameters of zeros alone, which prepare() changes, are zeros again at the end: the file may be written after that."""
    zeros = [parameter for parameter in model.parameters() if is_zero(parameter)]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter in zeros:
                parameter.zero_()


def is_zero(parameter):
    return parameter.is_floating_point() and parameter.device.type != "meta" and parameter.count_nonzero() == 0


def prepare(subject, file):
    """Opens both sides. The file's parameters get the dtype in which the model computes. Parameters of zeros alone, as a
    new adapter has, get other values on both sides, because they hide the gradients of others."""
    with torch.no_grad():
        values = names_of(file, "named_parameters")
        for name, parameter in names_of(subject.model, "named_parameters").items():
            if name not in values:
                raise Refused(f"the file has no parameter '{name}'")
            if is_zero(parameter):
                parameter.normal_(std=0.02, generator=torch.Generator().manual_seed(len(name)))
                values[name].copy_(parameter)
            if values[name].dtype != parameter.dtype:
                values[name].data = values[name].data.to(parameter.dtype)
    return Side(subject.model, subject.outputs, subject.train), Side(file, subject.outputs, file.train)


def open_file(path, is_traced):
    """Opens a TorchScript file as accel's worker does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that torch.export comes instead.
        try:
            file = torch.jit.load(str(path))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[-300:]
            raise Refused(f"torch does not load what accel makes of the model: {reason}") from None
    if is_traced:
        modes.follow(file)
    autocast.obey(file)
    return file


def shown(sizes):
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "the recorded sizes"


def compare(subject, path, sets, is_traced, locate, ones=()):
    """Compares the TorchScript file at `path` with the model for each set of sizes, in training and in evaluation. A traced
    file gets what accel does to it. Returns the largest difference. Raises Refused if it is above the tolerance;
    `locate(file, inputs, training, off)` says in which module, where `off` has the differences above the tolerance by name.
    In the sets of sizes `ones` either side may also fail, because a failure does not train a wrong model."""
    file = open_file(path, is_traced)
    model, other = prepare(subject, file)
    tolerance = TOLERANCES[subject.dtype]
    largest = 0.0
    # Like accel, this does not use the optimizing executor, which draws other random numbers.
    with torch.jit.optimized_execution(False):
        for seed, sizes in enumerate([*sets, *ones]):
            may_fail = seed >= len(sets)
            inputs = tensors(subject.inputs, sizes, seed)
            for training in (True, False):
                where = f"{shown(sizes)}, in {'training' if training else 'evaluation'}"
                unchanged = {name: checksum(parameter) for name, parameter in model.parameters.items()}
                try:
                    with named(f"the model itself in {str(subject.dtype).removeprefix('torch.')}", subject.model,
                               lambda error: HINT.format(subject.words.float32, subject.words.sizes)):
                        expected = model.run(inputs, training)
                except Refused:
                    if may_fail:
                        break
                    raise
                if may_fail and expected[0].isnan():  # A loss of the next tokens has none at length 1.
                    break
                require_unchanged(model.parameters, unchanged)
                try:
                    found = other.run(inputs, training)
                except RuntimeError as error:
                    if may_fail:
                        break
                    reason = str(error).strip().splitlines()[-1]
                    model.restore()
                    place = locate(file, inputs, training, {})
                    line = "" if "\n  at " in place else place_in_error(error)
                    raise Refused(f"the file fails where the model does not, at {where}: {reason}{place}" +
                                  (f"\n  at {line}" if line else "") + "\nhint: what depends on the sizes "
                                  "was frozen at the recorded ones; if you train with one length, give it: "
                                  + subject.words.one_size(name_of_length(subject))) from None
                off = differences(expected, found)
                worst = max(off, key=off.get)
                if off[worst] > tolerance:
                    noise = differences(expected, model.run_perturbed(inputs, training))
                    worst = max(off, key=lambda name: off[name] / tolerated(tolerance, noise[name]))
                    if off[worst] <= tolerated(tolerance, noise[worst]):
                        largest = max(largest, off[worst])
                        continue
                    model.restore()
                    place = locate(file, inputs, training, {name: value for name, value in off.items() if value > tolerance})
                    hint = reason_of(model, inputs) or FROZEN if training else FROZEN_MODE + SCRIPTED if is_traced else FROZEN_MODE
                    raise Refused(f"the file is another model at {where}: loss {found[0]:.6f}, the model's own {expected[0]:.6f}; "
                                  f"the largest difference is that of {worst}, {off[worst]:.2g} of its largest value{place}\n"
                                  f"hint: {hint}")
                largest = max(largest, off[worst])
    model.restore()
    return largest


def functions_of(loss):
    """Yields the functions of the graph that `loss` was computed by."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        function = waiting.pop()
        if function is not None and function not in seen:
            seen.add(function)
            yield function
            waiting += [before for before, _ in function.next_functions]


def reason_of(model, inputs):
    """Returns what to do if the model has gradients that no record of operators holds, or None."""
    found = set()
    model.run(inputs, True, lambda loss: found.update(type(function).__name__ for function in functions_of(loss) if isinstance(
        function, torch.autograd.function.BackwardCFunction)))
    names = sorted(name.removesuffix("Backward") for name in found)
    return names and (f"the model computes gradients of its own in the torch.autograd.Function {', '.join(names)}, and a record has the "
                      "operators of forward alone: replace it by operators of torch, or turn off what uses it")


def differences(expected, found):
    loss, gradients, buffers = expected
    # Some gradients are zero except for rounding errors, for example that of a key's bias.
    floor = 1e-3 * max([float(gradient.abs().max()) for gradient in gradients.values() if gradient is not None and gradient.numel()],
                       default=0.0)
    off = {f"'{name}'": difference(found[1][name], gradient, floor) for name, gradient in gradients.items()}
    off |= {f"'{name}'": difference(found[2].get(name), buffer, 0) for name, buffer in buffers.items()
            if buffer.is_floating_point() and name in found[2]}
    off[LOSS] = difference(found[0], loss, 0)
    return off


def checksum(parameter):
    """Returns a sum over the bits, which takes no second copy of a large parameter."""
    bits = parameter.detach().contiguous().flatten().view(torch.uint8)
    words = bits[:bits.numel() // 4 * 4].view(torch.int32) if bits.data_ptr() % 4 == 0 else bits
    return words.sum(dtype=torch.int64).item(), bits[words.numel() * words.element_size():].sum(dtype=torch.int64).item()


def require_unchanged(parameters, before):
    for name, parameter in parameters.items():
        if checksum(parameter) != before[name]:
            raise Refused(CHANGED.format(name))
