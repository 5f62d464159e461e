"""Adapters of PEFT on a model of transformers. The base is frozen, and the names are PEFT's."""

import pathlib
import warnings

import torch

from .refused import Refused, quiet


def add(model, path):
    """Returns the model with the adapter of a directory, or of the adapter_config.json at `path`. The adapter has the
    values of the directory's adapter_model.safetensors, or else those with which PEFT begins."""
    try:
        import peft
    except ImportError:
        raise Refused("--peft needs the package peft\nhint: pip install peft") from None
    path = pathlib.Path(path)
    directory = path.parent if path.is_file() else path
    try:
        config = peft.PeftConfig.from_pretrained(str(directory))
    except (OSError, ValueError) as error:
        raise Refused(f"'{directory}' has no adapter_config.json that PEFT reads: {str(error).splitlines()[0]}") from None
    config.inference_mode = False
    torch.manual_seed(0)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if (directory / "adapter_model.safetensors").exists():
            adapted = peft.PeftModel.from_pretrained(model, str(directory), is_trainable=True)
        else:
            adapted = peft.get_peft_model(model, config)
    if not any(parameter.requires_grad for parameter in adapted.parameters()):
        raise Refused(f"the adapter of '{directory}' trains no parameter of {type(model).__name__}")
    return adapted
