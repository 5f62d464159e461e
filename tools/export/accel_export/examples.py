"""Example inputs of transformers' models, by the names of forward's arguments."""

import inspect

import torch

from .inputs import Input, Size
from .refused import Refused

BATCH, LENGTH, DECODER_LENGTH = 2, 16, 12
SAMPLES = 6400  # 0.4 seconds of audio at 16 kHz.
PIXELS = 64  # Height and width of pictures for models that take any.
CHECKED_LENGTH = 150  # More than two chunks of 64, and not a multiple of 64.

SIZES = {
    "batch": Size(BATCH, (3, 5)),
    "length": Size(LENGTH, (CHECKED_LENGTH, 9)),
    "decoder length": Size(DECODER_LENGTH, (37, 7)),
    "samples": Size(SAMPLES, (9000, 4801)),
    "height": Size(PIXELS, (96, 80)),
    "width": Size(PIXELS, (80, 112)),
}


def value_of(config, *names):
    """Returns the first of these values that the configuration or one of its parts has, or None."""
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", None) or {})]
    for name in names:
        for part in parts:
            if getattr(part, name, None) is not None:
                return getattr(part, name)
    return None


def random(generator, *shape):
    return torch.randn(shape, generator=generator)


def tokens(config, generator, length):
    """Draws tokens other than the padding, which some models treat differently."""
    vocabulary = value_of(config.get_text_config(decoder=True), "vocab_size") or 2
    ids = torch.randint(vocabulary, (BATCH, length), generator=generator)
    padding = getattr(config.get_text_config(decoder=True), "pad_token_id", None)
    return ids if padding is None else torch.where(ids == padding, (padding + 1) % vocabulary, ids)


def mask(length):
    """Returns a mask of which the second sample has padding at its end."""
    ones = torch.ones(BATCH, length, dtype=torch.long)
    ones[1, length - length // 4:] = 0
    return ones


def picture(config, generator):
    size = value_of(config, "image_size")
    height, width = (PIXELS, PIXELS) if size is None else size if isinstance(size, (list, tuple)) else (size, size)
    dims = ("batch", None, "height", "width") if size is None else ("batch", None, None, None)
    return random(generator, BATCH, value_of(config, "num_channels", "in_channels") or 3, height, width), dims


def features(config, generator):
    """The spectrogram that Whisper takes, whose length is fixed."""
    frames = value_of(config, "max_source_positions")
    if frames is None:
        raise Refused("no example of 'input_features' is known for this model\nhint: use accel_export.export from Python")
    return random(generator, BATCH, value_of(config, "num_mel_bins"), 2 * frames), ("batch", None, None)


def example(name, config):
    """Returns the Input of this name."""
    generator = torch.Generator().manual_seed(0)
    text, decoder = ("batch", "length"), ("batch", "decoder length")
    if name == "pixel_values":
        return Input(name, *picture(config, generator))
    if name == "input_features":
        return Input(name, *features(config, generator))
    known = {
        "input_ids": lambda: (tokens(config, generator, LENGTH), text),
        "attention_mask": lambda: (mask(LENGTH), text),
        "token_type_ids": lambda: ((torch.arange(LENGTH) >= LENGTH // 2).long().repeat(BATCH, 1), text),
        "position_ids": lambda: (torch.arange(LENGTH).repeat(BATCH, 1), text),
        "decoder_input_ids": lambda: (tokens(config, generator, DECODER_LENGTH), decoder),
        "decoder_attention_mask": lambda: (mask(DECODER_LENGTH), decoder),
        "input_values": lambda: (random(generator, BATCH, SAMPLES), ("batch", "samples")),
    }
    if name not in known:
        raise Refused(f"no example of the input '{name}' is known; known are {', '.join([*known, 'pixel_values', 'input_features'])}"
                      "\nhint: use accel_export.export from Python, which takes example tensors")
    return Input(name, *known[name]())


def default_names(model, is_causal):
    """Returns the names of the inputs that a training of this kind of model takes."""
    arguments = inspect.signature(model.forward).parameters
    names = [model.main_input_name]
    if model.config.is_encoder_decoder and "decoder_input_ids" in arguments:
        names.append("decoder_input_ids")
    elif names == ["input_ids"] and not is_causal and "attention_mask" in arguments:
        names.append("attention_mask")
    return names


def sizes_for(inputs, config, length=None, batch=None):
    """Returns the sizes of the dimensions of `inputs`, not longer than the model has positions."""
    names = {name for item in inputs for name in item.dims if name}
    limit = value_of(config.get_text_config(), "max_position_embeddings", "n_positions", "n_ctx")
    sizes = {}
    for name in sorted(names):
        size = SIZES[name]
        if name.endswith("length") and limit:
            size = Size(min(size.recorded, limit), tuple(min(n, limit) for n in size.checked))
        given = batch if name == "batch" else length
        if given is not None and name not in ("height", "width"):
            size = Size(given, size.checked if name == "batch" else (given, max(1, given // 2 + 1)), given=True)
        sizes[name] = size
    return sizes
