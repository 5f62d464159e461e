"""Models of torch.export: imported they are the same model, bit for bit in forward."""

import json
import os
import subprocess
import zipfile

import judges
import pytest
import torch
import train_runs
from pt2_models import FREE, IDS, Shared, assert_same_model, export, first, language_model, made, structure_alone
from safetensors.torch import load_file
from torch.export import Dim


@pytest.mark.long(but="shared")
@pytest.mark.parametrize("kind", ["shared", "pictures", "llama", "qwen3", "gpt2", "opt", "phi", "gpt_neox"])
def test_an_imported_model_is_the_model(accel, tmp_path, kind):
    model, inputs = made(kind, tmp_path / "model.pt2")
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    state = model.state_dict()
    assert all(torch.equal(imported.state_dict()[name], tensor) for name, tensor in state.items())
    assert_same_model(imported, model, inputs)


@pytest.mark.long
def test_classes_are_the_authors(accel, tmp_path):
    made("llama", tmp_path / "model.pt2")
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    names = {name: module.original_name for name, module in imported.named_modules()}
    assert names[""] == "LlamaForCausalLM"
    assert names["model.layers.1"] == "LlamaDecoderLayer"
    assert names["model.layers.1.self_attn.q_proj"] == "Linear"
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        assert json.loads(archive.read("model/extra/accel.json"))["layer_classes"] == ["LlamaDecoderLayer"]


@pytest.mark.long
def test_what_torch_2_15_exports_is_the_same_model(accel, judge_of, tmp_path):
    judge_of("2.15")
    code = ("import sys; sys.path[:0] = sys.argv[2:]\nimport torch, pt2_models\n"
            "model, inputs = pt2_models.made('shared', sys.argv[1] + '/model.pt2')\n"
            "model.eval()\ntorch.save([inputs[1], model(inputs[1]).detach()], sys.argv[1] + '/expected.zip')\n")
    here = os.path.dirname(__file__)
    done = subprocess.run([judges.interpreter("2.15"), "-c", code, tmp_path, here, os.path.dirname(here)], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    accel("import", "model.pt2", "model.pt")
    inputs, expected = torch.load(tmp_path / "expected.zip")
    assert torch.equal(torch.jit.load(tmp_path / "model.pt").eval()(inputs), expected)


def test_the_weights_are_a_checkpoint(accel, tmp_path):
    model, _ = made("shared", tmp_path / "model.pt2")
    assert "model of torch.export" in accel("inspect", "model.pt2").stdout
    accel("merge-weights", "model.pt2", "merged")
    merged = load_file(tmp_path / "merged/model.safetensors")
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in merged.items())
    assert set(state) - set(merged) in ({"head.weight"}, {"tokens.weight"})
    accel("import", "model.pt2", "model.pt")
    # A TorchScript file has the buffers, too, that are not persistent, and the constants.
    beside = {"shift"} | {name for name in torch.jit.load(tmp_path / "model.pt").state_dict() if name.startswith("lifted_")}
    accel("diff", "model.pt2", "model.pt", *(word for name in sorted(beside) for word in ("--exclude", name)))
    assert "only in B" in accel("diff", "model.pt2", "model.pt", code=3).stdout


@pytest.mark.long
def test_load_puts_weights_into_a_program(accel, tmp_path):
    made("tied", tmp_path / "model.pt2")
    other = language_model("llama", {"tie_word_embeddings": True})
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    other.save_pretrained(tmp_path / "other")
    accel("load", "other", "--into", "model.pt2", "--out", "new.pt2")
    found = torch.export.load(tmp_path / "new.pt2").state_dict
    assert all(torch.equal(found[name], tensor) for name, tensor in other.state_dict().items())
    structure_alone(tmp_path / "model.pt2", tmp_path / "structure.pt2", {"ties": [["lm_head.weight", "model.embed_tokens.weight"]]})
    said = accel("load", "other", "--into", "structure.pt2", "--out", "again.pt2", code=2).stderr
    assert "has no place for the values of its parameters" in said and "such as model.pt" in said
    accel("import", "structure.pt2", "structure.pt")
    accel("load", "other", "--into", "structure.pt", "--out", "new.pt")  # Buffers that are not persistent keep their values.
    ids = torch.randint(0, 256, (2, 9))
    assert torch.equal(first(torch.jit.load(tmp_path / "new.pt")(ids)), first(other(ids)))
    accel("load", "other", "--into", "structure.pt2", "--out", "at-once.pt")
    accel("diff", "new.pt", "at-once.pt")
    assert torch.equal(first(torch.jit.load(tmp_path / "at-once.pt")(ids)), first(other(ids)))


class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, x):
        y = self.layer(x)
        return {"twice": y * 2, "more": (y, None, {"deep": y + 1}), "count": 3}


def test_outputs_keep_their_names(accel, tmp_path):
    model = Named().train()
    export(model, tmp_path / "model.pt2", torch.zeros(2, 3))
    accel("import", "model.pt2", "model.pt")
    x = torch.randn(2, 3)
    found, expected = torch.jit.load(tmp_path / "model.pt")(x), model(x)
    assert list(found) == ["twice", "more.0", "more.2.deep"]
    assert torch.equal(found["twice"], expected["twice"])
    assert torch.equal(found["more.0"], expected["more"][0]) and torch.equal(found["more.2.deep"], expected["more"][2]["deep"])


def test_a_dry_run_writes_nothing(accel, tmp_path):
    made("shared", tmp_path / "model.pt2")
    said = accel("import", "--dry-run", "model.pt2", "model.pt").stdout
    assert "would be written to model.pt" in said and not (tmp_path / "model.pt").exists()
    report = json.loads(accel("import", "--json", "model.pt2", "model.pt").stdout)
    assert report["inputs"] == ["ids"] and report["path"] == "model.pt"
    before = (tmp_path / "model.pt").read_bytes()
    assert "model.pt" in accel("import", "model.pt2", "model.pt", code=1).stderr
    assert (tmp_path / "model.pt").read_bytes() == before


class Out(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x):
        torch.add(x, 1, out=self.last)
        return x * 2


def test_an_operator_that_writes_into_a_buffer_is_refused(accel, tmp_path):
    export(Out().train(), tmp_path / "model.pt2", torch.ones(3))
    assert "changes 'last' in place" in refused(accel)


@pytest.mark.long(but="sizes1-inputs1-input 'ids' has 9 in dimension 0, and the model was exported for at most 8")
@pytest.mark.parametrize("sizes, inputs, said", [
    (({0: Dim("batch", min=4, max=8), 1: 16},), (2, 16), "input 'ids' has 2 in dimension 0, and the model was exported for at least 4"),
    (({0: Dim("batch", min=4, max=8), 1: 16},), (9, 16), "input 'ids' has 9 in dimension 0, and the model was exported for at most 8"),
    (({0: Dim("batch", min=4, max=8), 1: 16},), (4, 15), "input 'ids' has 15 in dimension 1, and the model was exported for 16 alone"),
    (({0: Dim("batch", min=4, max=8), 1: 16},), (4,), "input 'ids' has 1 dimensions, and the model was exported for 2"),
])
def test_an_input_outside_of_the_range_is_refused(accel, tmp_path, sizes, inputs, said):
    export(Shared().train(), tmp_path / "model.pt2", torch.zeros(4, 16, dtype=torch.long), dynamic=sizes)
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    imported(torch.zeros(5, 16, dtype=torch.long))
    with pytest.raises(torch.jit.Error, match=said.replace("(", r"\(")):
        imported(torch.zeros(*inputs, dtype=torch.long))


def refused(accel, code=1):
    said = accel("import", "model.pt2", "model.pt", code=code).stderr
    return said


def test_a_model_in_evaluation_mode_is_refused(accel, tmp_path):
    export(Shared().eval(), tmp_path / "model.pt2", IDS % 16, dynamic=FREE)
    said = refused(accel)
    assert "torch.ops.aten.dropout.default in module 'blocks.0.dropout'" in said
    assert "the model was exported in evaluation mode" in said and "model.train()" in said
    assert not (tmp_path / "model.pt").exists()


class Average(torch.nn.Module):
    """Keeps a running average in training."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        if self.training:
            if self.inside:
                with torch.no_grad():
                    self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            else:
                self.mean.mul_(0.9).add_(x.mean(0).detach(), alpha=0.1)
        return torch.dropout(x * self.mean, 0.1, self.training)


@pytest.mark.parametrize("inside", [False, True])
def test_a_state_that_changes_in_place_is_refused(accel, tmp_path, inside):
    export(Average(inside).train(), tmp_path / "model.pt2", torch.ones(4, 3))
    assert "changes 'mean' in place" in refused(accel)


class Norms(torch.nn.Module):
    """A batch norm that is called twice, one without running statistics, and an instance norm with them."""

    def __init__(self):
        super().__init__()
        self.twice = torch.nn.BatchNorm1d(3)
        self.without = torch.nn.BatchNorm1d(3, track_running_stats=False)
        self.instances = torch.nn.InstanceNorm1d(3, track_running_stats=True)

    def forward(self, x):
        return self.instances(self.without(self.twice(self.twice(x) + 1)))


def test_statistics_follow_the_mode(accel, tmp_path):
    model = Norms().train()
    export(model, tmp_path / "model.pt2", torch.randn(4, 3, 5))
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    model.load_state_dict(imported.state_dict())
    for training in (True, True, False, False, True):
        model.train(training)
        imported.train(training)
        x = torch.randn(4, 3, 5)
        torch.testing.assert_close(imported(x), model(x), rtol=0, atol=0)
        assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in imported.state_dict().items())


class Names(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ("in", "lambda", "None", "en-de")})
        self.forward_1 = torch.nn.Linear(3, 3)
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3))

    def forward(self, __size_0, print_):
        x = __size_0 + print_
        for module in self.words.values():
            x = module(x)
        return self.forward_1(self.inner(self.inner(x)))


def test_names_that_mean_something_in_torchscript(accel, tmp_path):
    model = Names().train()
    export(model, tmp_path / "model.pt2", torch.ones(2, 3), torch.ones(2, 3))
    accel("import", "model.pt2", "model.pt")
    x, y = torch.randn(2, 2, 3)
    assert torch.equal(torch.jit.load(tmp_path / "model.pt")(x, y), model(x, y))


class Gradients(torch.nn.Module):
    def forward(self, x):
        with torch.enable_grad():
            return torch.dropout(x, 0.1, self.training) * 2


def test_an_export_under_no_grad_is_refused_where_the_graph_shows_it(accel, tmp_path):
    with torch.no_grad():
        export(Gradients().train(), tmp_path / "model.pt2", torch.ones(3))
    assert "exported under torch.no_grad()" in refused(accel)


class Noise(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.1, self.training) + torch.randn_like(x)


def test_random_numbers_in_either_mode_are_a_warning(accel, tmp_path):
    export(Noise().train(), tmp_path / "model.pt2", torch.ones(3))
    said = accel("import", "model.pt2", "model.pt").stderr
    assert "torch.ops.aten.randn_like.default in the root" in said and "draws random numbers in evaluation, too" in said


class Pairs(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y[:-1].mul(x).sum()


ROWS = Dim("rows", min=2, max=50)


@pytest.mark.parametrize("model, examples, dynamic, right, wrong", [
    (Pairs(), (torch.ones(4), torch.ones(5)), ({0: ROWS}, {0: ROWS + 1}), [(9, 10), (50, 51)],
     {(9, 9): "input 'y' has 9 in dimension 0, and the model was exported for another that fits",
      (51, 52): "input 'x' has 51 in dimension 0, and the model was exported for at most 50"}),
    (torch.nn.Unflatten(0, (-1, 2)), (torch.ones(8),), ({0: 2 * ROWS},), [(6,), (100,)],
     {(7,): "input 'input' has 7 in dimension 0, and the model was exported for a multiple of 2",
      (102,): "input 'input' has 102 in dimension 0, and the model was exported for at most 100"}),
])
def test_sizes_that_depend_on_each_other(accel, tmp_path, model, examples, dynamic, right, wrong):
    export(model, tmp_path / "model.pt2", *examples, dynamic=dynamic)
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    for sizes in right:
        inputs = [torch.randn(size) for size in sizes]
        assert torch.equal(imported(*inputs), model(*inputs))
    for sizes, said in wrong.items():
        with pytest.raises(torch.jit.Error, match=said):
            imported(*map(torch.ones, sizes))


def test_a_size_of_another_form_is_refused(accel, tmp_path):
    export(Pairs(), tmp_path / "written.pt2", torch.ones(4), torch.ones(5), dynamic=({0: ROWS}, {0: ROWS + 1}))
    with zipfile.ZipFile(tmp_path / "written.pt2") as written, zipfile.ZipFile(tmp_path / "model.pt2", "w") as changed:
        for name in written.namelist():
            changed.writestr(name, written.read(name).replace(b"Add(Symbol", b"Pow(Symbol"))
    assert "dimension 0 of input 'y' is computed from other sizes" in refused(accel)


class Changes(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change
        self.register_buffer("mean", torch.ones(4, 4))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.change(self.mean)
        return torch.dropout(x @ self.mean, 0.1, self.training)


ALIASES = {
    "to": lambda b: b.to(torch.float32), "float": lambda b: b.float(), "type_as": lambda b: b.type_as(b),
    "contiguous": lambda b: b.contiguous(), "T": lambda b: b.T, "mT": lambda b: b.mT, "swapaxes": lambda b: b.swapaxes(0, 1),
    "broadcast_to": lambda b: b.broadcast_to(4, 4), "unfold": lambda b: b.unfold(0, 2, 2), "as_strided": lambda b: b.as_strided((2,), (1,)),
    "ravel": lambda b: b.ravel(), "tensor_split": lambda b: b.tensor_split(2)[0], "hsplit": lambda b: b.hsplit(2)[0],
    "view": lambda b: b.view(torch.int32), "twice": lambda b: b.mT.reshape(2, 8).float(),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_a_state_that_changes_through_an_alias_is_refused(accel, tmp_path, alias):
    export(Changes(lambda b: ALIASES[alias](b).add_(1)).train(), tmp_path / "model.pt2", torch.ones(3, 4))
    assert "changes 'mean' in place" in refused(accel)


@pytest.mark.parametrize("change", [lambda b: torch.clamp(b, 0, 1, out=b), lambda b: torch.max(b, 0, out=(b[0], torch.zeros(4, dtype=torch.long))),
                                    lambda b: b.set_(torch.zeros(4, 4)), lambda b: b.__setitem__(b > 0, 2.0)],
                         ids=["clamp", "max", "set_", "masked"])
def test_a_state_that_gets_a_result_is_refused(accel, tmp_path, change):
    export(Changes(change).train(), tmp_path / "model.pt2", torch.ones(3, 4))
    assert "changes 'mean' in place" in refused(accel)


class Foreach(torch.nn.Module):
    def forward(self, x):
        y, z = x * 2, x * 3
        torch._foreach_mul_([y, z], 0.5)
        return y + z


def test_an_operator_without_a_result_is_refused(accel, tmp_path):
    """TorchScript would leave it out, and the model would compute something else."""
    export(Foreach(), tmp_path / "model.pt2", torch.ones(3))
    said = refused(accel)
    assert "torch.ops.aten._foreach_mul_.Scalar in the root" in said and "has no result" in said and "hint: call the operator for each" in said


class CopiesAndDraws(torch.nn.Module):
    """Changes a copy of a buffer, and calls an operator that has an argument named `from`."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x):
        half = self.scale.to(torch.float64).mul_(0.5)
        return x * half.float() * torch.empty_like(x).uniform_(1.0, 1.0)


def test_a_copy_of_a_state_may_change(accel, tmp_path):
    export(CopiesAndDraws(), tmp_path / "model.pt2", torch.ones(3, 4))
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    assert torch.equal(imported(torch.full((3, 4), 3.0)), torch.full((3, 4), 3.0))
    assert torch.equal(imported.scale, torch.full((4,), 2.0))


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


def test_control_flow_is_refused_by_name(accel, tmp_path):
    export(Branches(), tmp_path / "model.pt2", torch.ones(3))
    said = refused(accel)
    assert "torch.ops.higher_order.cond in the root" in said and "control flow" in said and "hint: " in said
    assert "test_pt2.py" in said and "eval_with_key" not in said


class SizePower(torch.nn.Module):
    def forward(self, x):
        return x * x.shape[0] ** 2


def test_arithmetic_of_sizes_that_is_not_imported_is_named_so(accel, tmp_path):
    export(SizePower(), tmp_path / "model.pt2", torch.ones(3, 4), dynamic=FREE)
    said = refused(accel)
    assert "_operator.pow" in said and "this arithmetic of sizes is not imported" in said


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_are_grouped_as_in_transformers(accel, tmp_path, dtype):
    """In float32 the program holds transformers' own operator, in bfloat16 that of torch. A single token leaves experts without
    any, and 8 tokens of one value give all of theirs to the same ones."""
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    model = language_model("qwen2_moe", sizes).to(dtype)
    export(model, tmp_path / "model.pt2", IDS, dynamic=FREE)
    own = "transformers.grouped_mm_fallback" in (program := zipfile.ZipFile(tmp_path / "model.pt2").read("model/models/model.json").decode())
    assert own == (dtype == torch.float32) and own != ("aten._grouped_mm" in program)
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    for ids in (IDS, torch.tensor([[7]]), torch.full((1, 8), 3)):
        assert torch.equal(first(imported(ids)), first(model(ids)))
        if dtype != torch.float32:
            continue  # TorchScript's own derivatives, which no worker takes, mix dtypes.
        for module in (model, imported):
            module.zero_grad()
            first(module(ids)).square().mean().backward()
        # They are sums in another order, and some are rounding alone: tokens that are all alike attend to nothing.
        whole = max(parameter.grad.norm() for parameter in model.parameters())
        for name, parameter in model.named_parameters():
            off = (dict(imported.named_parameters())[name].grad - parameter.grad).norm()
            assert off <= 16 * torch.finfo(dtype).eps * whole, name


def test_memory_that_is_shared_in_part_is_refused(accel, tmp_path):
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3, bias=False), "b": torch.nn.Linear(3, 3, bias=False)})
    model.b.weight = torch.nn.Parameter(model.a.weight.data.t())
    model.forward = lambda x: model.b(model.a(x))
    export(model.train(), tmp_path / "model.pt2", torch.ones(2, 3))
    assert "'a.weight' and 'b.weight' share memory and are not the same tensor" in refused(accel)


@pytest.mark.parametrize("notes, said, code", [
    ("[" * 500_000 + "]" * 500_000, "the JSON nests more than 1000 deep", 5),
    ("[1]", "the extra file accel.json: it is not an object", 5),
    ('{"ties": "x"}', "the extra file accel.json is malformed", 5),
])
def test_notes_that_are_none(accel, tmp_path, notes, said, code):
    program = torch.export.export(torch.nn.Linear(3, 3).train(), (torch.ones(2, 3),), strict=False)
    torch.export.save(program, tmp_path / "model.pt2", extra_files={"accel.json": notes})
    assert said in refused(accel, code=code)


def test_ties_in_the_notes_do_not_untie_values(accel, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)).train()
    program = torch.export.export(model, (torch.ones(2, 3),), strict=False)
    torch.export.save(program, tmp_path / "model.pt2", extra_files={"accel.json": json.dumps({"ties": [["0.weight", "1.weight"]]})})
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    assert all(torch.equal(imported.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


class Sums(torch.nn.Module):
    def forward(self, x):
        return torch.add(0.25, x > 0, alpha=0.5) + torch.sub(2, x, alpha=3)


def test_a_number_may_stand_before_a_tensor(accel, tmp_path):
    export(Sums().train(), tmp_path / "model.pt2", torch.ones(3))
    accel("import", "model.pt2", "model.pt")
    x = torch.randn(3)
    assert torch.equal(torch.jit.load(tmp_path / "model.pt")(x), Sums()(x))


class Keys(torch.nn.Module):
    def forward(self, x):
        return {"a": {"b": x + 1}, "a.b": x + 2}


def test_outputs_need_names_of_their_own(accel, tmp_path):
    export(Keys().train(), tmp_path / "model.pt2", torch.ones(3))
    assert "two outputs of forward would be called 'a.b'" in refused(accel)


def test_damage_is_found(accel, tmp_path):
    made("shared", tmp_path / "model.pt2")
    checked = json.loads(accel("--json", "verify", "model.pt2").stdout)["checkpoints"]
    assert [(c["kind"], c["findings"], c["notes"]) for c in checked] == [("pt2", [], [])]
    assert "model.pt2" in accel("verify", ".").stdout
    whole = (tmp_path / "model.pt2").read_bytes()
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        place = archive.getinfo("model/data/weights/weight_0")
        begin = whole.index(archive.read("model/data/weights/weight_0"), place.header_offset)
    damaged = bytearray(whole)
    damaged[begin + 5] ^= 1
    (tmp_path / "model.pt2").write_bytes(damaged)
    assert "the CRC of record" in refused(accel, code=5)
    assert "checksum: model.pt2" in accel("verify", "model.pt2", code=3).stdout
    (tmp_path / "model.pt2").write_bytes(whole[:len(whole) // 2])
    refused(accel, code=5)


def test_another_format_is_refused(accel, tmp_path):
    train_runs.export(tmp_path / "model.pt2")
    assert "accel import needs a file of torch.export, but 'model.pt2' is torchscript" in refused(accel, code=2)
