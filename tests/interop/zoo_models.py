"""Models for the engine's tests: small and random, from the real packages, each as TorchScript and as eager Python.

models() returns {name: Zoo}. A Zoo's make() returns a module whose forward(*inputs()) is a loss. `classes` are the
classes to wrap. `script` says whether the model is scripted; otherwise it is traced. `peer_classes` are the classes
that fully_shard can wrap, if they differ. `lr` is a learning rate at which the model learns and rounding errors stay
small.
"""

import copy
import dataclasses
import os
import sys
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers

import train_runs

# torchvision and timm are beside the environment; see tools/dev.
if "ACCEL_ZOO_PACKAGES" in os.environ:
    sys.path.append(os.environ["ACCEL_ZOO_PACKAGES"])

BATCH, LENGTH, WORDS = 3, 12, 64


@dataclasses.dataclass
class Zoo:
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple]
    classes: List[str]
    script: bool = False
    peer_classes: Optional[List[str]] = None
    lr: float = 3e-3


class LanguageModel(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        logits = self.model(input_ids=input_ids, use_cache=False, return_dict=False)[0]
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class MaskedModel(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return F.cross_entropy(self.model(input_ids=input_ids, return_dict=False)[0].flatten(0, 1), labels.flatten())


class Translator(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        logits = self.model(input_ids=input_ids, decoder_input_ids=labels, use_cache=False, return_dict=False)[0]
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Classifier(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels, labels):
        return F.cross_entropy(self.model(pixels, return_dict=False)[0], labels)


class LogitsClassifier(nn.Module):
    """Wraps models that return only logits, as those of torchvision and timm do."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels, labels):
        return F.cross_entropy(self.model(pixels), labels)


class ScriptedGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt = train_runs.GPT(vocabulary=WORDS, length=LENGTH, width=32, layers=3, heads=2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor):
        return F.cross_entropy(self.gpt(input_ids).flatten(0, 1), labels.flatten())


class Encoder(nn.Module):
    """A model with an nn.TransformerEncoder. The parameters of the embedding need no gradient."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.embedding.weight.requires_grad_(False)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, WORDS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor):
        return F.cross_entropy(self.head(self.encoder(self.embedding(input_ids))).flatten(0, 1), labels.flatten())


class RecurrentLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.rnn = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x):
        return x + self.rnn(self.norm(x))[0]


class Recurrent(nn.Module):
    """An LSTM's forward reads its parameters from a list, `_flat_weights`. At first a buffer shares the storage of a
    parameter, and an attribute shares a part of one."""

    start: torch.Tensor

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.layers = nn.Sequential(RecurrentLayer(), RecurrentLayer(), RecurrentLayer())
        self.head = nn.Linear(16, WORDS)
        self.register_buffer("start", self.embedding.weight.detach())
        self.first_biases = self.head.bias.detach()[:5]

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor):
        loss = F.cross_entropy(self.head(self.layers(self.embedding(input_ids))).flatten(0, 1), labels.flatten())
        return loss + 0.01 * (self.embedding.weight - self.start - 1).square().mean() + self.first_biases.mean()


class Pair(NamedTuple):
    hidden: torch.Tensor
    extra: Optional[torch.Tensor]


class UnitTuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, pair: Tuple[torch.Tensor, torch.Tensor]) -> Tuple[torch.Tensor, torch.Tensor]:
        return self.linear(pair[0]) + pair[1], pair[1] * 2


class UnitOptional(nn.Module):
    """Has Optional arguments and returns from the middle of forward."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, scale: Optional[torch.Tensor] = None, early: bool = False) -> Pair:
        if scale is not None:
            if early:
                return Pair(self.first(x) * scale, scale)
            return Pair(self.second(x) * scale, None)
        for i in range(3):
            if i == 2:
                return Pair(self.first(x), None)
            x = x + self.second(x)
        return Pair(x, None)


class UnitDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, values: Dict[str, torch.Tensor], more: List[torch.Tensor]) -> Dict[str, torch.Tensor]:
        y = values["x"]
        for t in more:
            y = y + self.linear(t)
        return {"x": y, "first": more[0]}


class UnitWithoutInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(8))

    def forward(self) -> torch.Tensor:
        return self.queries * 2


class UnitWithMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)

    @torch.jit.export
    def encode(self, x):
        return torch.tanh(self.linear(x))


class UnitEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, 8) * 0.1)

    def forward(self, ids):
        return F.embedding(ids, self.weight)


class UnitInner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.linear(x))


class UnitOuter(nn.Module):
    """A unit that contains another unit."""

    def __init__(self):
        super().__init__()
        self.inner = UnitInner()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, scale: float = 1.0):
        return self.linear(self.inner(x)) * scale


class UnitNorm(nn.Module):
    """Has running statistics and a parameter that is never used."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.idle = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return self.norm(x.flatten(0, 1)).view_as(x)


class UnitInPlace(nn.Module):
    """Changes its argument and returns nothing."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> None:
        x.add_(self.linear(x.detach().clone()))


class Awkward(nn.Module):
    """Has units of every signature that a unit may have. It reads the embedding's weight and calls one unit twice."""

    def __init__(self, in_place: bool = True):
        super().__init__()
        self.embedding = UnitEmbedding()
        self.pair = UnitTuple()
        self.optional = UnitOptional()
        self.dict = UnitDict()
        self.queries = UnitWithoutInput()
        self.method = UnitWithMethod()
        self.inner = UnitInner()
        self.outer = UnitOuter()
        self.norm = UnitNorm()
        self.in_place = UnitInPlace()
        self.changes = in_place

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor):
        x = self.embedding(input_ids)
        a, b = self.pair((x, x))
        x = a + b
        first = self.optional(x)
        second = self.optional(x, scale=torch.ones_like(x), early=True)
        third = self.optional(x, torch.ones_like(x))
        x = x + first.hidden + second.hidden + third.hidden
        extra = second.extra
        if extra is not None:
            x = x * extra
        found = self.dict({"x": x}, [x, first.hidden])
        x = found["x"] + found["first"] + self.queries()
        x = x + self.method(x) + self.method.encode(x)
        x = self.norm(self.inner(self.inner(x)))
        if self.changes:
            y = x * 1.0
            self.in_place(y)
            x = x + y
        x = torch.tanh(x + self.outer(x, scale=0.5))
        return F.cross_entropy(F.linear(x, self.embedding.weight).flatten(0, 1), labels.flatten())


UNITS = ["UnitTuple", "UnitOptional", "UnitDict", "UnitWithoutInput", "UnitWithMethod", "UnitEmbedding", "UnitInner",
         "UnitOuter", "UnitNorm"]

# The units whose parameters are read only by their own forward.
PEER_UNITS = ["UnitTuple", "UnitOptional", "UnitDict", "UnitWithoutInput", "UnitInner", "UnitOuter", "UnitNorm"]


def words():
    return torch.randint(WORDS, (BATCH, LENGTH)), torch.randint(WORDS, (BATCH, LENGTH))


def pictures():
    return torch.randn(BATCH, 3, 32, 32), torch.randint(5, (BATCH,))


def bert(dropout):
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, max_position_embeddings=32)
    return Zoo(lambda: MaskedModel(transformers.BertForMaskedLM(config)), words, ["BertLayer"])


def larger_pictures():
    # ResNet18 divides each side by 32. Smaller images would leave too few values for BatchNorm.
    return torch.randn(4, 3, 64, 64), torch.randint(5, (4,))


def resnet18():
    import torchvision
    return LogitsClassifier(torchvision.models.resnet18(num_classes=5))


def timm_vit():
    from timm.models.vision_transformer import VisionTransformer
    return LogitsClassifier(VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2, num_classes=5))


def models():
    tf = transformers
    llama = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return {
        "gpt": Zoo(ScriptedGpt, words, ["Block"], script=True),
        "awkward": Zoo(Awkward, words, [*UNITS, "UnitInPlace"], script=True, peer_classes=PEER_UNITS),
        "awkward, nothing in place": Zoo(lambda: Awkward(False), words, UNITS, script=True, peer_classes=PEER_UNITS),
        "TransformerEncoder": Zoo(Encoder, words, ["TransformerEncoderLayer"], script=True),
        "TransformerEncoder, traced": Zoo(Encoder, words, ["TransformerEncoderLayer"]),
        "LSTM": Zoo(Recurrent, words, ["RecurrentLayer"], script=True),
        "Llama": Zoo(lambda: LanguageModel(tf.LlamaForCausalLM(tf.LlamaConfig(**llama))), words, ["LlamaDecoderLayer"]),
        "Qwen3": Zoo(lambda: LanguageModel(tf.Qwen3ForCausalLM(tf.Qwen3Config(**llama, head_dim=8,
                                                                              tie_word_embeddings=True))),
                     words, ["Qwen3DecoderLayer", "Qwen3RMSNorm"]),
        "GPT-2": Zoo(lambda: LanguageModel(tf.GPT2LMHeadModel(tf.GPT2Config(
            vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=3, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))),
            words, ["GPT2Block"]),
        "BERT": bert(dropout=0.0),
        "T5": Zoo(lambda: Translator(tf.T5ForConditionalGeneration(tf.T5Config(
            vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0))), words, ["T5Block"]),
        "ViT": Zoo(lambda: Classifier(tf.ViTForImageClassification(tf.ViTConfig(
            image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=5))), pictures, ["ViTLayer"]),
        "ResNet": Zoo(lambda: Classifier(tf.ResNetForImageClassification(tf.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic", num_labels=5))), pictures,
            ["ResNetBasicLayer", "ResNetConvLayer"], lr=1e-4),
        "torchvision ResNet18, scripted": Zoo(resnet18, larger_pictures, ["BasicBlock"], script=True, lr=1e-6),
        "torchvision ResNet18, traced": Zoo(resnet18, larger_pictures, ["BasicBlock"], lr=1e-6),
        "timm ViT": Zoo(timm_vit, pictures, ["Block"]),
    }


class Inputs(nn.Module):
    """Holds tensors as the buffers of a TorchScript file."""

    def __init__(self, tensors):
        super().__init__()
        for i, tensor in enumerate(tensors):
            self.register_buffer(f"input{i}", tensor)

    def forward(self):
        return 0


def export(zoo, model, path):
    """Writes a copy of the model. Tracing runs the copy once and changes running statistics; the model gets those."""
    if zoo.script:
        compiled = torch.jit.script(copy.deepcopy(model))
    else:
        with torch.random.fork_rng():
            compiled = torch.jit.trace(copy.deepcopy(model), zoo.inputs(), check_trace=False)
    for name, buffer in compiled.named_buffers():
        model.get_buffer(name).copy_(buffer)
    compiled.save(str(path))
