"""Models of transformers: from a directory with a config.json to what is recorded."""

import argparse
import contextlib
import inspect
import json
import os
import pathlib

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from . import adapter, examples, labels, notes, structure
from .conversions import Unsupported, conversions_of, names_in
from .refused import Refused, named
from .subject import Subject, bind, named_tensors, require_no_hidden_change, unchanged
from .words import Flags

transformers.utils.logging.disable_progress_bar()

TRIED = "5.0.0, 5.17.0, 5.23.0 and 5.24.0"  # Of transformers; tests/interop/test_releases.py.
CHECKED_PARAMETERS = 500_000_000  # A larger model without values is compared with fewer of its layers.


class Directory:
    """A directory of transformers, and what the user wants of it."""

    def __init__(self, path, options):
        self.path, self.options, self.described = path, options, None
        if options.peft and not options.weights:
            raise Refused("a file with an adapter has the weights of its base, too\nhint: add --weights")
        self.config = self.read_config()
        self.cls = self.model_class()

    def read_config(self):
        def hint(error):
            return ("a model whose code is not in transformers is exported from Python, by accel_export.export"
                    if "trust_remote_code" in str(error) else "the directory needs a config.json of transformers")

        with named("reading config.json", None, hint):  # By default transformers asks on the terminal whether to run code.
            config = transformers.AutoConfig.from_pretrained(self.path, trust_remote_code=False)
        for key, value in self.options.set:
            if not hasattr(config, key):
                raise Refused(f"--set names '{key}', which the configuration does not have")
            with named(f"--set {key}={json.dumps(value)}", None, lambda error: "give a value of the type that config.json has there"):
                setattr(config, key, value)
        attention = getattr(config, "_attn_implementation", None) or "sdpa"
        if attention.startswith(("flash", "flex", "paged", "kernels")):
            raise Refused(f"the configuration asks for the attention '{attention}', whose operators are not torch's own\n"
                          "hint: remove attn_implementation from config.json, or add --set _attn_implementation=sdpa")
        return config

    def model_class(self):
        """Returns the class that the user or the configuration names, or transformers' causal LM or base class of it."""
        kind = self.config.model_type
        named = (getattr(self.config, "architectures", None) or [None])[0]
        name = self.options.architecture or named or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) or MODEL_MAPPING_NAMES.get(kind)
        cls = getattr(transformers, name, None) if isinstance(name, str) else None
        if cls is None:
            raise Refused(f"transformers {transformers.__version__} has no model class '{name}'\nhint: name one with --class; a "
                          "model whose code is not in transformers is exported from Python, by accel_export.export")
        return cls

    @property
    def is_causal(self):
        return self.cls.__name__ in set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()) or self.cls.__name__.endswith("ForCausalLM")

    def experts(self):
        """How transformers computes experts, if the model has any: grouped_mm, or batched_mm, which copies the weights of the
        experts of each token. Tracing on the meta device and compiled code need the latter, and --set may ask for it."""
        if not self.cls._can_set_experts_implementation():
            return {}
        is_asked = dict(self.options.set).get("_experts_implementation") == "batched_mm"
        is_grouped = (self.options.is_program or self.options.weights) and not self.options.compile and not is_asked
        return {"experts_implementation": "grouped_mm" if is_grouped else "batched_mm"}

    def with_experts_that_fit(self, model):
        """aten::_grouped_mm takes weights alone whose rows and columns have a multiple of 16 bytes."""
        experts = [module for module in model.modules() if hasattr(module, "is_transposed")]
        sizes = [size for module in experts for parameter in module.parameters() if parameter.dim() == 3 for size in parameter.shape[1:]]
        if any(size % 8 for size in sizes):  # Of 16 bits.
            model.set_experts_implementation("batched_mm")
        return model

    def make(self, config):
        """Makes a model of random values."""
        with named(f"making {self.cls.__name__} of config.json", None, lambda error: "correct the value in config.json or in --set"):
            return self.with_experts_that_fit(self.cls._from_config(config, dtype=torch.float32, **self.experts()))

    def with_weights(self):
        """The model of the directory with its weights."""
        torch.manual_seed(0)
        hint = "--weights needs the model's weights in the directory, as save_pretrained writes them"
        with named("reading the weights", None, lambda error: hint):
            model, loaded = self.cls.from_pretrained(self.path, config=self.config, dtype=torch.float32, output_loading_info=True,
                                                     **self.experts())
        if new := sorted({*loaded["missing_keys"], *(str(key) for key in loaded["mismatched_keys"])}):
            shown = f"{', '.join(new[:3])}{' and others' if len(new) > 3 else ''}"
            if not self.options.architecture:
                raise Refused(f"the weights of '{self.path}' lack {len(new)} tensors of {self.cls.__name__}, which would get random "
                              f"values: {shown}\nhint: if they are to begin anew, as a new head does, name the class with --class")
            print(f"new, with random values: {shown}", flush=True)
        return self.subject(self.with_experts_that_fit(model))

    def without_values(self):
        """The model with parameters that take no memory."""
        if self.described is None:
            self.described = self.describe(structure.on_cpu_without_values(self.on_meta()))
        model = self.on_meta()
        if self.options.is_program:
            structure.on_cpu_without_values(model, self.options.dtype)
        return self.subject(model)

    def on_meta(self):
        with structure.parameters_on_meta():
            model = self.make(self.config)
        model.tie_weights()
        return model

    def with_random_values(self):
        """The model with random values, of fewer layers if it is large."""
        config, count, layers = self.reduced()
        needed = 20 * self.parameters_of(config)  # Two models, a copy of one and two sets of gradients take 4 bytes each.
        free = available_bytes()
        if needed > free:
            raise Refused(f"the comparison with the model's own loss needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are "
                          "free\nhint: export on a larger machine, or without the comparison with --no-check")
        torch.manual_seed(0)
        model = self.make(config)
        with torch.no_grad():  # Biases and norms move away from 0 and 1, so that a mix-up of parameters shows.
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.add_(torch.randn_like(parameter) * 0.02)
        return self.subject(model)

    def part(self):
        """Says which part of the model is compared. Empty if it is all of it."""
        _, count, layers = self.reduced()
        return f" with {count} of its {layers} layers" if count < layers else ""

    def reduced(self):
        """Halves the layers until the model has at most CHECKED_PARAMETERS, but keeps one layer of each kind. Returns the
        configuration, its number of layers, and the original number."""
        config = self.read_config()
        part = config.get_text_config(decoder=True)
        layers = getattr(part, "num_hidden_layers", 0)
        kinds = structure.kinds_of_layers(self.on_meta(), layers)
        for number, kind in enumerate(getattr(part, "layer_types", None) or []):
            if number < len(kinds):
                kinds[number] = (kind, kinds[number])
        least = max([2, *(kinds.index(kind) + 1 for kind in set(kinds))])
        count = layers
        while self.parameters_of(config) > CHECKED_PARAMETERS and count > least:
            count = max(least, count // 2)
            part.num_hidden_layers = count
            for name, value in list(vars(part).items()):
                if isinstance(value, list) and len(value) == layers:  # A kind for each layer.
                    setattr(part, name, value[:count])
        return config, count, layers

    def parameters_of(self, config):
        with structure.parameters_on_meta():
            return sum(parameter.numel() for parameter in self.make(config).parameters())

    def in_float32(self):
        """The same directory, for a model that computes in float32."""
        return Directory(self.path, argparse.Namespace(**{**vars(self.options), "dtype": torch.float32}))

    def subject(self, model):
        options = self.options
        if options.peft:
            model = adapter.add(model, options.peft)
        require_no_hidden_change(model.train(), Flags)
        conversions = self.conversions(model)
        inputs, outputs, shifts = self.interface(model)
        sizes = examples.sizes_for(inputs, self.config, options.length, options.batch)
        subject = Subject(model, inputs, sizes, outputs, shifts_labels=shifts, conversions=conversions)
        subject.layers = [] if options.layers == ["none"] else notes.layer_classes(model, Flags, options.layers)
        bind(model, [item.name for item in inputs], outputs, self.arguments(model))
        if options.dtype != torch.float32:
            subject.set_dtype(options.dtype)
        return subject

    def conversions(self, model):
        """Returns of what in a directory of weights the tensors consist that have other names or shapes in the model."""
        try:
            return conversions_of(model, names_in(self.path))
        except Unsupported as error:
            if self.options.weights:
                return []
            raise Refused(f"transformers {transformers.__version__} converts {error} when it loads the weights, which accel does not; "
                          f"tried are the releases {TRIED}\nhint: put the weights into the file, with --weights") from None

    def arguments(self, model):
        """What every call gets beside the inputs."""
        uses_cache = "use_cache" in inspect.signature(type(model.get_base_model() if self.options.peft else model).forward).parameters
        return {"return_dict": True, **({"use_cache": False} if uses_cache else {})}

    def interface(self, model):
        """Returns inputs, names of outputs, and whether the model shifts labels. The first model that is made decides."""
        if self.described is None:
            self.described = self.describe(model)
        return self.described

    @torch.no_grad()
    def describe(self, model):
        names = self.options.inputs or examples.default_names(model, self.is_causal)
        inputs = [examples.example(name, self.config) for name in names if name != "labels"]
        arguments = self.arguments(model)

        def forward(**more):
            torch.manual_seed(0)
            with named("forward", model, lambda error: "see --inputs"):
                return named_tensors(model(**{item.name: item.example for item in inputs}, **arguments, **more))

        with unchanged(model):
            found = forward()
            item = labels.example_labels(found["logits"], inputs) if "logits" in found else None
            has_loss = item is not None and "labels" in inspect.signature(self.cls.forward).parameters
            wants_loss = "labels" in names or self.options.loss
            shifts, more = None, 0.0
            if has_loss and structure.has_values(next(model.parameters())):
                with contextlib.nullcontext() if wants_loss else contextlib.suppress(Exception):  # Without a loss it is information.
                    shifts, more = labels.are_shifted(
                        lambda values: tuple(map(forward(labels=values).get, ("loss", "logits"))), item.example)
            if not wants_loss:
                if more:
                    print("warning: the model's own loss has a part beside the cross entropy, as a router's auxiliary loss is "
                          f"({more:.2g} for the example), and a file without --loss trains without it", flush=True)
                first = next((name for name in ("logits", "last_hidden_state") if name in found), next(iter(found), None))
                return inputs, self.options.outputs or [first], None
            if not has_loss:
                raise Refused(f"{self.cls.__name__} has no loss of its own for labels that are classes\nhint: export without --loss")
        place = names.index("labels") if "labels" in names else len(inputs)
        return [*inputs[:place], item, *inputs[place:]], self.options.outputs or ["loss"], shifts


def available_bytes():
    """Returns the memory that can be allocated without swapping."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
