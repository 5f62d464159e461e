"""Records of training data in JSON lines, and what a tokenizer makes of them: tokens, and which of them count."""

import dataclasses
import itertools
import json
import re

from .refused import Refused

MOST_RECORDS, MOST_BYTES = 1000, 1_000_000  # Of a batch that is tokenized at once.
KINDS = "a record has 'messages', or 'prompt' and 'completion', or 'text'"
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclasses.dataclass
class Record:
    path: str
    line: int  # From 1.
    value: dict
    kind: str  # "messages", "text", "prompt of text" or "prompt of messages".
    tools: str  # JSON, or empty.

    @property
    def place(self):
        return f"{self.path}:{self.line}"


@dataclasses.dataclass
class Document:
    record: Record
    tokens: list[int]
    mask: list[int]  # 1 for each token that counts as a label.


def is_conversation(value):
    return isinstance(value, list) and len(value) > 0 and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)


def record_of(path, number, line):
    """Parses a line. Raises Refused, with its number, if it is not a record."""
    place = f"{path}:{number}"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{place}: the line is not JSON: {error}\nhint: each line is one JSON object; {KINDS}") from None
    if not isinstance(value, dict):
        raise Refused(f"{place}: the line is not a JSON object\nhint: {KINDS}")
    tools = value.get("tools") or ""
    tools = tools if isinstance(tools, str) else json.dumps(tools)
    if "prompt" in value and "completion" in value:
        both = [value["prompt"], value["completion"]]
        if all(isinstance(part, str) for part in both):
            return Record(path, number, value, "prompt of text", "")
        if all(map(is_conversation, both)):
            return Record(path, number, value, "prompt of messages", tools)
        raise Refused(f"{place}: 'prompt' and 'completion' are neither two texts nor two lists of messages\n"
                      "hint: a message is an object with 'role' and 'content'")
    if "messages" in value:
        if not is_conversation(value["messages"]):
            raise Refused(f"{place}: 'messages' is not a list of messages\nhint: a message is an object with 'role' and 'content'")
        return Record(path, number, value, "messages", tools)
    if isinstance(value.get("text"), str):
        return Record(path, number, value, "text", "")
    raise Refused(f"{place}: the record has the keys {', '.join(map(repr, value)) or 'of no kind'}\nhint: {KINDS}")


def read(paths, seen):
    """Yields lists of records of one kind. `seen(bytes)` is told how much has been read."""
    def records():
        for path in paths:
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    seen(len(line))
                    if line.strip():
                        yield len(line), record_of(path, number, line)

    for _, group in itertools.groupby(records(), key=lambda item: (item[1].kind, item[1].tools)):
        batch, size = [], 0
        for length, record in group:
            batch.append(record)
            size += length
            if len(batch) == MOST_RECORDS or size >= MOST_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


class Tokenizer:
    """A tokenizer of transformers, and the rules by which a record becomes a document: those of trl's SFTTrainer. Texts end
    with the tokenizer's end token. What a chat template writes stays as it is."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.end = tokenizer.eos_token or ""
        self.marks_answers = bool(GENERATION.search(self.template() or ""))
        self.cut_prompts = []  # Places of records whose prompt alone has other tokens than at the document's beginning.

    def template(self):
        template = self.tokenizer.chat_template
        return template.get("default") if isinstance(template, dict) else template

    def documents(self, records):
        """Returns a Document for each of `records`, which are of one kind."""
        try:
            return self.tokenize(records)
        except Refused:
            raise
        except Exception:
            if len(records) == 1:
                raise
        # What failed in a batch fails alone, and then its line is known.
        return [document for record in records for document in self.alone(record)]

    def alone(self, record):
        try:
            return self.tokenize([record])
        except Refused:
            raise
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise Refused(f"{record.place}: the tokenizer refuses the record: {reason}\n"
                          "hint: compare the record with what the tokenizer's chat template expects") from error

    def tokenize(self, records):
        kind = records[0].kind
        if kind == "text":
            return [Document(record, ids, [1] * len(ids))
                    for record, ids in zip(records, self.of_texts([self.ended(record.value["text"]) for record in records]))]
        if kind == "prompt of text":
            prompts = self.of_texts([record.value["prompt"] for record in records])
            return self.completions(records, prompts, self.of_texts(
                [record.value["prompt"] + self.ended(record.value["completion"]) for record in records]))
        self.require_template(records[0])
        tools = json.loads(records[0].tools) if records[0].tools else None
        if kind == "prompt of messages":
            prompts = self.of_chats([record.value["prompt"] for record in records], tools, add_generation_prompt=True)
            everything = self.of_chats([record.value["prompt"] + record.value["completion"] for record in records], tools)
            return self.completions(records, prompts["input_ids"], everything["input_ids"])
        chats = self.of_chats([record.value["messages"] for record in records], tools, return_assistant_tokens_mask=self.marks_answers)
        masks = chats["assistant_masks"] if self.marks_answers else [[1] * len(ids) for ids in chats["input_ids"]]
        return [Document(*parts) for parts in zip(records, chats["input_ids"], masks)]

    def ended(self, text):
        return text if text.endswith(self.end) else text + self.end

    def of_texts(self, texts):
        return self.tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]

    def of_chats(self, chats, tools, **options):
        return self.tokenizer.apply_chat_template(chats, tools=tools, tokenize=True, return_dict=True, **options)

    def completions(self, records, prompts, everything):
        documents = []
        for record, prompt, ids in zip(records, prompts, everything):
            if ids[:len(prompt)] != prompt:
                self.cut_prompts.append(record.place)
            count = min(len(prompt), len(ids))
            documents.append(Document(record, ids, [0] * count + [1] * (len(ids) - count)))
        return documents

    def require_template(self, record):
        if not self.template():
            raise Refused(f"{record.place}: the record has messages, and the tokenizer has no chat template\n"
                          "hint: use the tokenizer of a chat model, or records with 'text'")
