"""accel-export --tokenize: records of chats, prompts or text as a file of documents for accel."""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import time

DESCRIPTION = """Writes records as tokens of a model's own tokenizer, once, for `format: documents` in the configuration of accel.

RECORDS are files of JSON lines, directories that `save_to_disk` of the package datasets has written, and .parquet files. The
directories need that package, and .parquet files pyarrow. A record is an object, or a row, with one of:
  messages               a chat, by the tokenizer's chat template; if the template marks what the assistant says
                         ({% generation %}), that alone is learned, else every token
  prompt and completion  two texts, or two lists of messages; the completion alone is learned
  text                   every token is learned
  input_ids              tokens already, with `labels` (-100 for what is not learned) and masks, if there are any
Texts end with the tokenizer's end token, as in trl's SFTTrainer. The tokenizer is read from DIRECTORY, never from a hub."""

BETWEEN_LINES = 10  # Seconds between two lines of progress.


def parser():
    parser = argparse.ArgumentParser(prog="accel-export --tokenize", description=DESCRIPTION,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tokenize", nargs="+", metavar="RECORDS", required=True, help="JSON lines, directories of datasets or .parquet files")
    add("--tokenizer", metavar="DIRECTORY", required=True, help="the directory of the model, which has its tokenizer")
    add("-o", "--output", metavar="OUT", required=True, type=pathlib.Path, help="the file to write, a name such as chat.safetensors")
    add("--overwrite", action="store_true", help="replace OUT if it exists")
    return parser


class Progress:
    """Says how far the reading is, on standard error."""

    def __init__(self, paths, writer):
        from .sources import bytes_of
        self.total, self.writer = max(1, sum(map(bytes_of, paths))), writer
        self.read, self.said = 0, time.monotonic()

    def seen(self, count):
        self.read += count
        if time.monotonic() - self.said >= BETWEEN_LINES:
            self.said = time.monotonic()
            print(f"{int(100 * self.read / self.total)}%: {self.writer.documents} documents, {self.writer.tokens} tokens",
                  file=sys.stderr, flush=True)


def load(directory):
    """Returns the tokenizer of a directory."""
    import transformers
    from .refused import named

    hint = "name the directory that has the model's tokenizer, with tokenizer.json"
    with named(f"reading the tokenizer of '{directory}'", None, lambda error: hint):
        return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)


def digest_of(tokenizer):
    """Returns a text that is the same for tokenizers that make the same tokens, whether they cut or pad them last."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        text = json.dumps(tokenizer.get_vocab(), sort_keys=True)
    else:
        backend = type(backend).from_str(backend.to_str())
        backend.no_truncation()
        backend.no_padding()
        text = backend.to_str()
    return hashlib.sha256(text.encode()).hexdigest()


def write(options):
    """Writes the file. Raises Refused for records and tokenizers that do not fit."""
    from .documents import Writer
    from .exporter import publish, staging
    from .records import Tokenizer, read
    from .refused import Refused

    if options.output.exists() and not options.overwrite:
        raise Refused(f"'{options.output}' exists\nhint: choose another name, or add --overwrite")
    tokenizer = load(options.tokenizer)
    rules = Tokenizer(tokenizer)
    kinds, empty, without_labels = set(), 0, 0
    with staging(options.output) as folder:
        writer = Writer(folder / "parts", rules.vocabulary)
        progress = Progress(options.tokenize, writer)
        for records in read(options.tokenize, progress.seen):
            kinds.add(records[0].kind)
            documents = rules.documents(records)
            empty += sum(not document.tokens for document in documents)
            without_labels += sum(1 not in document.mask[1:] for document in documents if document.tokens)
            if some := [document for document in documents if document.tokens]:
                writer.add(some)
        if writer.documents == 0:
            raise Refused(f"{', '.join(options.tokenize)}: there is no record")
        if writer.labels == 0:
            raise Refused(f"no token of the {writer.documents} documents counts as a label\n"
                          "hint: a document's first token never counts; are answers of the assistant or completions in the records?")
        padding = next((number for number in (tokenizer.pad_token_id, tokenizer.eos_token_id) if number is not None), 0)
        metadata = {"tokenizer": pathlib.Path(options.tokenizer).resolve().name, "tokenizer_sha256": digest_of(tokenizer),
                    "vocabulary_size": str(rules.vocabulary), "pad_token_id": str(padding)}
        if any("messages" in kind for kind in kinds):
            metadata["chat_template_sha256"] = hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest()
        place = folder / options.output.name
        writer.write(place, metadata)
        publish(place, options.output)
    report(options, rules, writer, kinds, empty, without_labels)


def report(options, rules, writer, kinds, empty, without_labels):
    print(f"{options.output}: {writer.documents} documents, {writer.tokens} tokens, of which {writer.labels} count as labels")
    if "messages" in kinds:
        print("labels of messages: " + ("what the assistant says, as the chat template marks it" if rules.marks_answers else
                                        "every token, since the chat template does not mark what the assistant says "
                                        "({% generation %})"))
    if kinds & {"text", "prompt of text"} and not rules.end:
        print("the tokenizer has no end token, so that texts end without one")
    if empty:
        print(f"{empty} records have no tokens and are left out")
    if without_labels:
        print(f"{without_labels} documents have no token that counts as a label")
    if places := rules.cut_prompts:
        print(f"warning: in {len(places)} records, the first at {places[0]}, the tokens of the prompt are not the first ones of prompt and "
              "completion together; as many tokens as the prompt has do not count")


def main(arguments):
    options = parser().parse_args(arguments)
    from .cli import fail
    for path in options.tokenize:
        if not os.path.isfile(path) and not os.path.isdir(path):
            fail(f"'{path}' " + ("is neither a file nor a directory" if os.path.exists(path) else "does not exist") +
                 "\nhint: --tokenize takes files of JSON lines, directories of datasets and .parquet files")
    if not os.path.isdir(options.tokenizer):
        fail(f"--tokenizer: '{options.tokenizer}' is not a directory of this machine\nhint: get a model of a hub first, with "
             "`hf download NAME --local-dir DIRECTORY`")
    try:
        from .refused import Refused
        import transformers  # noqa: F401
    except ImportError as error:
        fail(f"the package {error.name} cannot be imported: {error}\nhint: pip install torch transformers")
    try:
        write(options)
    except Refused as refused:
        fail(str(refused))
    except OSError as error:
        place = f"'{error.filename}': " if error.filename is not None else ""
        fail(f"{options.output} cannot be written: {place}{error.strerror or error}\nhint: choose another place for OUT")
