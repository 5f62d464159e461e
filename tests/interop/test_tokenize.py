"""accel-export --tokenize writes what the tokenizer of transformers makes of records."""

import json

import numpy
import pytest
import tokenizers
import transformers
from accel_export import cli, records, tokenizing
from safetensors import safe_open
from train_runs import ROOT

QUESTION = {"role": "user", "content": "Who made the heaven"}
ANSWER = {"role": "assistant", "content": "God made it"}
PLAIN = ("{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + eos_token }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}")
MARKED = ("{% for m in messages %}{{ '<' + m['role'] + '>' }}{% if m['role'] == 'assistant' %}"
          "{%- generation -%}{{ m['content'] + eos_token }}{% endgeneration %}{% else %}{{ m['content'] + eos_token }}{% endif %}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}")


def write_tokenizer(directory, template=None, begin=False, tokens=500, **options):
    """A byte-level BPE tokenizer that, with `begin`, puts a token before each text as Llama's does."""
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = tokenizers.decoders.ByteLevel()
    special = ["<s>", "</s>", "<user>", "<assistant>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=tokens, special_tokens=special, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pairs.train([str(ROOT / "examples/data/genesis-exodus.txt")], trainer)
    if begin:
        pairs.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=pairs, **{"eos_token": "</s>", **options})
    made.chat_template = template
    made.save_pretrained(directory)
    return made


@pytest.fixture
def tokenize(tmp_path, capsys):
    """tokenize(RECORDS, FLAGS...) runs accel-export --tokenize. Returns its output, the file's metadata, and (tokens, mask) of
    each document."""

    def run(lines, *flags):
        (tmp_path / "in.jsonl").write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        cli.main(["--tokenize", str(tmp_path / "in.jsonl"), "--tokenizer", str(tmp_path / "hf"), "-o", str(tmp_path / "out.safetensors"),
                  *flags])
        with safe_open(tmp_path / "out.safetensors", "np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            metadata = file.metadata()
        ends = numpy.cumsum(tensors["lengths"])
        assert ends[-1] == len(tensors["input_ids"]) == len(tensors["label_mask"])
        parts = [(tensors["input_ids"][end - length:end], tensors["label_mask"][end - length:end])
                 for end, length in zip(ends, tensors["lengths"])]
        return capsys.readouterr().out, metadata, [(ids.tolist(), mask.tolist()) for ids, mask in parts]

    return run


@pytest.fixture
def refused(tokenize, tmp_path):
    """refused(...) does what tokenize does and returns why it is refused. Nothing is written."""

    def run(*arguments):
        before = {path.name for path in tmp_path.iterdir()} | {"in.jsonl"}
        with pytest.raises(SystemExit) as exit:
            tokenize(*arguments)
        assert exit.value.code == 2 and {path.name for path in tmp_path.iterdir()} == before
        return str(exit.value)

    return run


def learned(tokenizer, document):
    ids, mask = document
    return tokenizer.decode([token for token, counts in zip(ids, mask) if counts])


def test_answers_that_the_template_marks_are_learned_alone(tokenize, tmp_path):
    tokenizer = write_tokenizer(tmp_path / "hf", MARKED)
    chat = [QUESTION, ANSWER, {"role": "user", "content": "And the earth"}, {"role": "assistant", "content": "God, too"}]
    said, metadata, documents = tokenize([{"messages": chat}, {"messages": [QUESTION, ANSWER]}])
    for messages, document in zip((chat, [QUESTION, ANSWER]), documents):
        expected = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        assert document == (expected["input_ids"], expected["assistant_masks"])
    assert learned(tokenizer, documents[0]) == "God made it</s>God, too</s>"
    assert "labels of messages: what the assistant says" in said
    assert metadata["format"] == "accel.documents" and metadata["vocabulary_size"] == "500" and metadata["pad_token_id"] == "1"
    assert int(metadata["largest_token"]) == max(max(ids) for ids, _ in documents)


def test_a_template_without_marks_makes_all_tokens_count_and_says_so(tokenize, tmp_path):
    tokenizer = write_tokenizer(tmp_path / "hf", PLAIN)
    said, _, [(ids, mask)] = tokenize([{"messages": [QUESTION, ANSWER]}])
    assert ids == tokenizer.apply_chat_template([QUESTION, ANSWER], tokenize=True)["input_ids"] and set(mask) == {1}
    assert "labels of messages: every token, since the chat template does not mark" in said


def test_text_ends_with_the_end_token_once(tokenize, tmp_path):
    tokenizer = write_tokenizer(tmp_path / "hf", begin=True)
    _, _, documents = tokenize([{"text": "In the beginning"}, {"text": "In the beginning</s>"}, "\n", {"text": ""}])
    expected = tokenizer("In the beginning</s>")["input_ids"]
    assert expected[0] == tokenizer.convert_tokens_to_ids("<s>") and expected[-1] == tokenizer.eos_token_id
    assert [ids for ids, _ in documents] == [expected, expected, tokenizer("</s>")["input_ids"]]


def test_the_completion_alone_is_learned(tokenize, tmp_path):
    tokenizer = write_tokenizer(tmp_path / "hf", PLAIN, begin=True)
    said, _, documents = tokenize([{"prompt": "In the beginning", "completion": " God created"},
                                   {"prompt": [QUESTION], "completion": [ANSWER]}])
    assert documents[0][0] == tokenizer("In the beginning God created</s>")["input_ids"]
    assert learned(tokenizer, documents[0]) == " God created</s>"
    assert documents[1][0] == tokenizer.apply_chat_template([QUESTION, ANSWER], tokenize=True)["input_ids"]
    assert learned(tokenizer, documents[1]) == "God made it</s>"
    assert "warning" not in said


def test_a_prompt_that_ends_within_a_token_is_named(tokenize, tmp_path):
    write_tokenizer(tmp_path / "hf")
    said, _, _ = tokenize([{"prompt": "In the ", "completion": "beginning"}, {"text": "x"}])
    assert "warning: in 1 records, the first at" in said and "in.jsonl:1" in said


def test_batches_do_not_change_documents(tokenize, tmp_path, monkeypatch):
    write_tokenizer(tmp_path / "hf", MARKED)
    words = (ROOT / "examples/data/genesis-exodus.txt").read_text().split()
    lines = [{"text": " ".join(words[i:i + 1 + i % 17])} for i in range(50)]
    lines += [{"messages": [QUESTION, {"role": "assistant", "content": " ".join(words[i:i + 2 + i % 5])}]} for i in range(50)]
    together = tokenize(lines)[2]
    monkeypatch.setattr(records, "MOST_RECORDS", 1)
    assert tokenize(lines, "--overwrite")[2] == together
    monkeypatch.setattr(records, "MOST_RECORDS", 1000)
    monkeypatch.setattr(records, "MOST_BYTES", 300)
    assert tokenize(lines, "--overwrite")[2] == together and len(together) == 100


def test_tools_are_those_of_the_record(tokenize, tmp_path):
    template = "{% if tools %}{{ tools[0]['name'] }}{% endif %}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer = write_tokenizer(tmp_path / "hf", template)
    records = [{"messages": [QUESTION], "tools": [{"name": name}]} for name in ("heaven", "earth")]
    records.append({"messages": [QUESTION], "tools": json.dumps([{"name": "waters"}])})
    _, _, documents = tokenize([*records, {"messages": [QUESTION]}])
    assert [tokenizer.decode(ids) for ids, _ in documents] == [name + QUESTION["content"] for name in ("heaven", "earth", "waters", "")]


def test_a_template_for_tools_is_used_for_records_with_tools(tokenize, refused, tmp_path):
    """Both templates mark what the assistant says, or neither does: otherwise labels would be those of another rule without a word."""
    records = [{"messages": [QUESTION, ANSWER], "tools": [{"name": "heaven"}]}, {"messages": [QUESTION, ANSWER]}]
    tokenizer = write_tokenizer(tmp_path / "hf", {"default": MARKED, "tool_use": "tools: " + MARKED})
    _, metadata, documents = tokenize(records)
    assert [tokenizer.decode(ids).startswith("tools: ") for ids, _ in documents] == [True, False]
    assert all(0 < sum(mask) < len(mask) for _, mask in documents)
    first = metadata["chat_template_sha256"]
    write_tokenizer(tmp_path / "hf", {"default": MARKED, "tool_use": "with tools: " + MARKED})
    assert tokenize(records, "--overwrite")[1]["chat_template_sha256"] != first
    write_tokenizer(tmp_path / "hf", {"default": MARKED, "tool_use": "{{ tools }}{% for m in messages %}{{ m['content'] }}{% endfor %}"})
    (tmp_path / "out.safetensors").unlink()
    assert "in.jsonl:1: of the tokenizer's chat templates default and tool_use one alone marks" in refused(records)


def test_variables_of_a_template_are_those_of_the_record(tokenize, refused, tmp_path):
    """trl gives them to the template of the prompt and to that of the whole."""
    template = ("{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"
                "{% if add_generation_prompt %}{{ 'assistant' + ('' if enable_thinking else 'think') }}{% endif %}")
    tokenizer = write_tokenizer(tmp_path / "hf", template)
    chat = {"prompt": [QUESTION], "completion": [{"role": "assistant", "content": "think God"}]}
    _, _, documents = tokenize([{**chat, "chat_template_kwargs": {"enable_thinking": True}}, chat])
    learned = [tokenizer.decode([token for token, counts in zip(*document) if counts]) for document in documents]
    assert learned == ["think God", " God"]
    (tmp_path / "out.safetensors").unlink()
    for wrong in ("x", {"tokenize": False}):
        assert "in.jsonl:1: 'chat_template_kwargs' is not an object of variables" in refused([{**chat, "chat_template_kwargs": wrong}])
    assert "in.jsonl:1: 'tools' is not JSON" in refused([{**chat, "tools": "{"}])


def test_an_end_that_the_tokenizer_adds_is_there_once(tokenize, tmp_path):
    tokenizer = write_tokenizer(tmp_path / "hf")
    end = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    tokenizer.save_pretrained(tmp_path / "hf")
    out, _, documents = tokenize([{"text": "God"}, {"text": "God</s>"}, {"prompt": "In the", "completion": " beginning"}])
    god, of_prompt, answer = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("God", "In the", " beginning"))
    assert [ids for ids, _ in documents] == [[*god, end], [*god, end], [*of_prompt, *answer, end]]
    assert documents[2][1] == [0] * len(of_prompt) + [1] * (len(answer) + 1) and "prompt" not in out


@pytest.mark.parametrize("columns, said", [
    ({"seq_lengths": [2, 1]}, "the record has 'seq_lengths', so that it is several documents"),
    ({"position_ids": [0, 1, 0]}, "the record has 'position_ids', so that it is several documents"),
    ({"position_ids": [0, 1]}, "'position_ids' is not a list of whole numbers, one for each"),
])
def test_packs_are_refused(refused, tokenize, tmp_path, columns, said):
    write_tokenizer(tmp_path / "hf")
    assert f"in.jsonl:1: {said}" in refused([{"input_ids": [5, 6, 7], **columns}])
    one = {"input_ids": [5, 6, 7], "position_ids": [0, 1, 2], "seq_lengths": [3]}
    padded = {"input_ids": [1, 1, 5, 6, 7], "position_ids": [1, 1, 0, 1, 2], "attention_mask": [0, 0, 1, 1, 1]}  # On the left.
    assert tokenize([one, padded])[2] == [([5, 6, 7], [1, 1, 1])] * 2


def test_the_tokenizer_is_the_same_if_it_cuts_or_pads(tokenize, tmp_path):
    tokenizer = write_tokenizer(tmp_path / "hf")
    before = tokenizing.digest_of(tokenizing.load(tmp_path / "hf"))
    tokenizer.backend_tokenizer.enable_truncation(7)
    tokenizer.backend_tokenizer.enable_padding(pad_id=tokenizer.eos_token_id, pad_token="</s>", length=9)
    tokenizer.save_pretrained(tmp_path / "hf")
    assert tokenizing.digest_of(tokenizing.load(tmp_path / "hf")) == before
    _, metadata, [(ids, _)] = tokenize([{"text": "God " * 20}])
    assert metadata["tokenizer_sha256"] == before and len(ids) > 9


def test_a_large_vocabulary_is_stored_in_32_bits(tokenize, tmp_path):
    tokenizer = write_tokenizer(tmp_path / "hf", tokens=300)
    tokenizer.add_tokens([f"<{i}>" for i in range(70_000)])
    tokenizer.save_pretrained(tmp_path / "hf")
    _, metadata, [(ids, _)] = tokenize([{"text": "<69999><1>"}])
    assert ids == tokenizer("<69999><1></s>")["input_ids"] and max(ids) > 65536
    assert metadata["largest_token"] == str(max(ids))


@pytest.mark.parametrize("lines, message", [
    ([{"text": "x"}, "{\"text\": \n"], "in.jsonl:2: the line is not JSON: "),
    (["[1]\n"], "in.jsonl:1: the line is not a JSON object"),
    ([{"question": "x"}], "in.jsonl:1: the record has the keys 'question'"),
    ([{"messages": "x"}], "in.jsonl:1: 'messages' is not a list of messages"),
    ([{"messages": [{"content": "x"}]}], "in.jsonl:1: 'messages' is not a list of messages"),
    ([{"prompt": "x", "completion": [ANSWER]}], "in.jsonl:1: 'prompt' and 'completion' are neither two texts nor two lists"),
    ([{"messages": [QUESTION, ANSWER]}, {"messages": [{"role": "assistant"}]}],
     "in.jsonl:2: the tokenizer refuses the record: "),
    ([{"messages": [{"role": "assistant"}]}], "in.jsonl:1: the tokenizer refuses the record: "),  # The only one of its batch.
    ([{"text": "x"}, '{"text": "half \\ud83d"}\n'], "in.jsonl:2: a text has one half of a surrogate pair"),
    (['{"messages": [{"role": "user", "content": "\\ude00"}]}\n'], "in.jsonl:1: a text has one half of a surrogate pair"),
    ([{"input_ids": [True, False]}], "in.jsonl:1: 'input_ids' is not a list of whole numbers"),
    ([{"input_ids": [1, True]}], "in.jsonl:1: 'input_ids' is not a list of whole numbers"),
    ([{"messages": [QUESTION]}], "no token of the 1 documents counts as a label"),
    (["\n"], "there is no record"),
])
def test_wrong_records_are_named_by_their_line(refused, tmp_path, lines, message):
    write_tokenizer(tmp_path / "hf", MARKED)
    assert message in refused(lines)


def test_messages_need_a_chat_template(refused, tmp_path):
    write_tokenizer(tmp_path / "hf")
    assert "in.jsonl:1: the record has messages, and the tokenizer has no chat template" in refused([{"messages": [QUESTION]}])


def test_a_file_is_not_replaced_unasked(tokenize, refused, tmp_path):
    write_tokenizer(tmp_path / "hf")
    tokenize([{"text": "In the beginning"}])
    assert "exists\nhint: choose another name, or add --overwrite" in refused([{"text": "x"}])
    assert tokenize([{"text": "God"}], "--overwrite")[2][0][0] != []


def test_wrong_paths_are_named(refused, tmp_path, capsys):
    write_tokenizer(tmp_path / "hf")
    for arguments, message in [(["nothing.jsonl", "--tokenizer", str(tmp_path)], "'nothing.jsonl' does not exist"),
                               ([str(tmp_path), "--tokenizer", str(tmp_path / "hf")], "it has no state.json"),
                               ([__file__, "--tokenizer", "meta-llama/Llama"], "is not a directory of this machine"),
                               ([__file__, "--tokenizer", str(tmp_path)], "reading the tokenizer of")]:
        with pytest.raises(SystemExit) as exit:
            cli.main(["--tokenize", *arguments, "-o", str(tmp_path / "out")])
        assert exit.value.code == 2 and message in str(exit.value)
