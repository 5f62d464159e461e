"""Records of training data, and what a tokenizer makes of them: tokens, and which of them count."""

import dataclasses
import itertools
import json
import re

import numpy

from .refused import Refused

MOST_RECORDS, MOST_BYTES = 1000, 1_000_000  # Of a batch that is tokenized at once.
KINDS = "a record has 'messages', or 'prompt' and 'completion', or 'text', or tokens as 'input_ids'"
MASKS = ("attention_mask", "completion_mask", "assistant_masks")
OF_PACKS = ("position_ids", "seq_lengths")
COLUMNS = ("messages", "prompt", "completion", "text", "tools", "chat_template_kwargs", "input_ids", "labels", *MASKS, *OF_PACKS)
TAKEN = {"tools", "tokenize", "return_dict", "return_tensors", "add_generation_prompt", "return_assistant_tokens_mask", "chat_template"}
NOT_A_LABEL = -100
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclasses.dataclass
class Record:
    place: str  # The file and the line, for messages.
    value: dict
    kind: str  # "messages", "text", "prompt of text", "prompt of messages" or "tokens".
    template: str = "{}"  # JSON: what the chat template gets beside the messages.


@dataclasses.dataclass
class Document:
    record: Record
    tokens: list[int]
    mask: list[int]  # 1 for each token that counts as a label.


def is_conversation(value):
    return isinstance(value, list) and len(value) > 0 and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)


def record_of(place, value):
    """Returns a dict as a Record. Raises Refused, with its place, if it is not one."""
    if "input_ids" in value:  # Tokenized already, whatever else is left of before.
        return Record(place, value, "tokens")
    if "prompt" in value and "completion" in value:
        both = [value["prompt"], value["completion"]]
        if all(isinstance(part, str) for part in both):
            return Record(place, value, "prompt of text")
        if all(map(is_conversation, both)):
            return Record(place, value, "prompt of messages", of_template(place, value))
        raise Refused(f"{place}: 'prompt' and 'completion' are neither two texts nor two lists of messages\n"
                      "hint: a message is an object with 'role' and 'content'")
    if "messages" in value:
        if not is_conversation(value["messages"]):
            raise Refused(f"{place}: 'messages' is not a list of messages\nhint: a message is an object with 'role' and 'content'")
        return Record(place, value, "messages", of_template(place, value))
    if isinstance(value.get("text"), str):
        return Record(place, value, "text")
    raise Refused(f"{place}: the record has the keys {', '.join(map(repr, value)) or 'of no kind'}\nhint: {KINDS}")


def of_template(place, value):
    tools, others = value.get("tools") or None, value.get("chat_template_kwargs") or {}
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise Refused(f"{place}: 'tools' is not JSON: {error}\nhint: give a list of objects, or its JSON as a text") from None
    if not isinstance(others, dict) or others.keys() & TAKEN:
        raise Refused(f"{place}: 'chat_template_kwargs' is not an object of variables of the chat template\n"
                      "hint: such as {\"enable_thinking\": false}; tools have a key of their own")
    return json.dumps({"tools": tools, **others})


def read(paths, seen):
    """Yields lists of records of one kind. `seen(bytes)` is told how much has been read."""
    from .sources import records_of

    def records():
        for path in paths:
            for size, record in records_of(path):
                seen(size)
                yield size, record

    for _, group in itertools.groupby(records(), key=lambda item: (item[1].kind, item[1].template)):
        batch, size = [], 0
        for length, record in group:
            batch.append(record)
            size += length
            if len(batch) == MOST_RECORDS or size >= MOST_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def column_of(record, name, length=None):
    """Returns a list of numbers of a record as an array of int64."""
    column = record.value[name]
    numbers = numpy.asarray(column) if column else numpy.zeros(0, dtype="int64")
    is_mask = name in MASKS or bool not in set(map(type, column if isinstance(column, list) else ()))
    if not isinstance(column, list) or not is_mask or numbers.ndim != 1 or numbers.dtype.kind not in "iub" or length not in (None, len(numbers)):
        raise Refused(f"{record.place}: '{name}' is not a list of whole numbers, one for each of 'input_ids'\n"
                      "hint: a document is one flat list of tokens, not a batch of them")
    return numbers.astype("int64")


def first(condition):
    return int(numpy.flatnonzero(condition)[0])


def refuse_packs(record, shown):
    """`shown` says which tokens are not padding."""
    several = len(record.value.get("seq_lengths") or ()) > 1
    positions = column_of(record, "position_ids", len(shown))[shown] if record.value.get("position_ids") is not None else None
    if several or (positions is not None and (positions != numpy.arange(len(positions))).any()):
        raise Refused(f"{record.place}: the record has '{'seq_lengths' if several else 'position_ids'}', so that it is several documents\n"
                      "hint: give each document a record of its own; accel packs them")


def tokenized(record, vocabulary):
    """Returns the Document of a record that has tokens: those that its attention_mask does not hide. A token counts if no mask
    that the record has says otherwise, and if `labels`, which are the tokens themselves, do not have -100 there."""
    ids = column_of(record, "input_ids")
    if (wrong := (ids < 0) | (ids >= vocabulary)).any():
        raise Refused(f"{record.place}: token {first(wrong)} is {ids[first(wrong)]}, but the tokenizer knows 0 to {vocabulary - 1}\n"
                      "hint: --tokenizer names the model whose tokenizer made the tokens")
    labels = column_of(record, "labels", len(ids)) if "labels" in record.value else ids
    if (wrong := (labels != ids) & (labels != NOT_A_LABEL)).any():
        raise Refused(f"{record.place}: label {first(wrong)} is {labels[first(wrong)]}, but the token is {ids[first(wrong)]}\n"
                      f"hint: 'labels' are the tokens themselves or {NOT_A_LABEL}, as the models of transformers take them, which shift "
                      "them later")
    masks = {name: column_of(record, name, len(ids)) != 0 for name in MASKS if name in record.value}
    counts = numpy.logical_and.reduce([labels != NOT_A_LABEL, *masks.values()])
    shown = masks.get("attention_mask", numpy.ones(len(ids), dtype=bool))
    refuse_packs(record, shown)
    return Document(record, ids[shown].tolist(), counts[shown].astype(int).tolist())


def marks_answers(template):
    return bool(GENERATION.search(template or ""))


class Tokenizer:
    """A tokenizer of transformers, and the rules by which a record becomes a document: those of trl's SFTTrainer. Texts end
    with the tokenizer's end token. What a chat template writes stays as it is."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.end = tokenizer.eos_token or ""
        self.adds_end = self.end != "" and self.of_texts(["a"])[0][-1:] == [tokenizer.eos_token_id]
        self.vocabulary = max(tokenizer.get_vocab().values()) + 1
        self.marks_answers = marks_answers(self.template())
        self.cut_prompts = []  # Places of records whose prompt alone has other tokens than at the document's beginning.

    def template(self, tools=None):
        """Returns the chat template of a record with `tools`, as apply_chat_template() chooses it."""
        template = self.tokenizer.chat_template
        if not isinstance(template, dict):
            return template
        return template["tool_use"] if tools is not None and "tool_use" in template else template.get("default")

    def documents(self, records):
        """Returns a Document for each of `records`, which are of one kind."""
        try:
            return self.tokenize(records)
        except Refused:
            raise
        except Exception:
            pass
        # What failed in a batch fails alone, and then its line is known.
        return [document for record in records for document in self.alone(record)]

    def alone(self, record):
        try:
            return self.tokenize([record])
        except Refused:
            raise
        except Exception as error:
            if any("\ud800" <= character <= "\udfff" for character in json.dumps(record.value, ensure_ascii=False)):
                raise Refused(f"{record.place}: a text has one half of a surrogate pair, which is not a character\n"
                              "hint: it may have been cut between two escapes, \\ud83d and \\ude00 for one emoji; write both, or none"
                              ) from None
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise Refused(f"{record.place}: the tokenizer refuses the record: {reason}\n"
                          "hint: compare the record with what the tokenizer's chat template expects") from error

    def tokenize(self, records):
        kind = records[0].kind
        if kind == "tokens":
            return [tokenized(record, self.vocabulary) for record in records]
        if kind == "text":
            return [Document(record, ids, [1] * len(ids))
                    for record, ids in zip(records, self.of_texts([self.ended(record.value["text"]) for record in records]))]
        if kind == "prompt of text":
            prompts = map(self.without_end, self.of_texts([record.value["prompt"] for record in records]))
            return self.completions(records, prompts, self.of_texts(
                [record.value["prompt"] + self.ended(record.value["completion"]) for record in records]))
        given = json.loads(records[0].template)
        self.require_template(records[0], given["tools"])
        if kind == "prompt of messages":
            prompts = self.of_chats([record.value["prompt"] for record in records], given, add_generation_prompt=True)
            everything = self.of_chats([record.value["prompt"] + record.value["completion"] for record in records], given)
            return self.completions(records, prompts["input_ids"], everything["input_ids"])
        if marks_answers(self.template(given["tools"])) != self.marks_answers:
            raise Refused(f"{records[0].place}: of the tokenizer's chat templates default and tool_use one alone marks what the "
                          "assistant says ({% generation %})\nhint: let both do so, or none")
        chats = self.of_chats([record.value["messages"] for record in records], given, return_assistant_tokens_mask=self.marks_answers)
        masks = chats["assistant_masks"] if self.marks_answers else [[1] * len(ids) for ids in chats["input_ids"]]
        return [Document(*parts) for parts in zip(records, chats["input_ids"], masks)]

    def ended(self, text):
        without = text.removesuffix(self.end)
        return without if self.adds_end else without + self.end

    def without_end(self, ids):
        return ids[:-1] if self.adds_end else ids

    def of_texts(self, texts):
        return self.tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]

    def of_chats(self, chats, given, **options):
        return self.tokenizer.apply_chat_template(chats, tokenize=True, return_dict=True, **given, **options)

    def completions(self, records, prompts, everything):
        documents = []
        for record, prompt, ids in zip(records, prompts, everything):
            if ids[:len(prompt)] != prompt:
                self.cut_prompts.append(record.place)
            count = min(len(prompt), len(ids))
            documents.append(Document(record, ids, [0] * count + [1] * (len(ids) - count)))
        return documents

    def require_template(self, record, tools):
        if not self.template(tools):
            raise Refused(f"{record.place}: the record has messages, and the tokenizer has no chat template\n"
                          "hint: use the tokenizer of a chat model, or records with 'text'")
