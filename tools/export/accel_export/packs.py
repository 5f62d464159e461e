"""Whether a file keeps documents apart that share a sample, each with position_ids from 0 on."""

import torch

from .check import TOLERANCES, difference, open_file, prepare
from .inputs import tensors
from .labels import IGNORED

TAKES = {"input_ids", "position_ids", "labels"}  # What samples of packed documents have.
DOCUMENTS = 3
LEAST_TOKENS = 4


def may_pack(subject):
    """Whether data of packed documents have all that the model takes, with positions that say where a document begins."""
    names = {item.name for item in subject.inputs}
    return {"input_ids", "position_ids"} <= names <= TAKES and subject.sizes.get("length") is not None


def ranges_of(length):
    """Cuts [0, length) into documents of different lengths. Returns (begin, end) of each, or nothing if there is no room."""
    if length < 4 * DOCUMENTS:
        return []
    ends = [length // 2 - 1, length // 2 + length // 4, length]
    return list(zip([0, *ends], ends))


def leak(subject, path, is_traced):
    """Returns the largest difference, relative to the largest value, between what the TorchScript file at `path` computes for
    a document in a pack and for the same document at the beginning of a sample, where it cannot see another. It is 0 if
    what other documents say has no effect. None if the sizes leave no room for a pack, or if the example has so few different
    tokens that documents say the same.

    Both are of the recorded sizes, so that it works for files of one length, too, and the same kernels run."""
    sizes = {name: size.recorded for name, size in subject.sizes.items()}
    ranges = ranges_of(sizes["length"])
    values = dict(zip((item.name for item in subject.inputs), tensors(subject.inputs, sizes, 0)))
    if not ranges or values["input_ids"].unique().numel() < LEAST_TOKENS:
        return None
    file = open_file(path, is_traced)
    prepare(subject, file)
    file.eval()
    largest = 0.0
    with torch.no_grad(), torch.jit.optimized_execution(False):
        for number, (begin, end) in enumerate(ranges):
            order = ranges[number:] + ranges[:number]
            in_pack = outputs(file, subject, values, ranges, (begin, end))
            alone = outputs(file, subject, values, order, (0, end - begin))
            for expected, found in zip(alone, in_pack):
                largest = max(largest, difference(found, expected, 0))
    return largest


def outputs(file, subject, values, order, place):
    """Runs the file on a sample of the documents in `order`, (begin, end) in `values` each. Returns the outputs at the tokens
    of `place`: those of each token, or the loss whose labels are of these tokens alone."""
    begin, end = place
    tokens = torch.cat([values["input_ids"][:, first:last] for first, last in order], 1)
    positions = torch.cat([torch.arange(last - first) for first, last in order]).expand_as(tokens)
    # A model that shifts its labels compares them with the logits before, so that the first one does not count.
    labels = torch.full_like(tokens, IGNORED)
    labels[:, begin + 1:end - 1] = tokens[:, begin + 1:end - 1]
    given = {"input_ids": tokens, "position_ids": positions.contiguous(), "labels": labels}
    result = file(*(given[item.name] for item in subject.inputs))
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    return [output[:, begin:end] if output.dim() > 1 else output for output in results if output.is_floating_point()]


def are_apart(leak):
    """Whether a difference is rounding. A leak is a hundred times larger and more."""
    return leak <= TOLERANCES[torch.float32]
