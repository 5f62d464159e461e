#pragma once

#include <memory>
#include <string>

#include "data/formats/document_source.hpp"

namespace accel {

/// Opens the rows of datasets on disk, or of other Arrow files, as documents: a list of tokens `input_ids` in
/// each row. A token counts as a label if `labels`, which are the tokens themselves or -100, and the masks
/// `completion_mask` and `assistant_masks` say so, as far as they are there; that is what accel-export
/// --tokenize makes of such rows. Rows without tokens are left out.
///
/// `pattern` is a path or a glob. Throws Error (kUsage) if a file does not have the format, the columns are
/// not such lists, or the first rows have padding, which attention_mask hides. Padding further behind is one
/// of read_tokens().
[[nodiscard]] std::unique_ptr<DocumentSource> open_arrow_documents(const std::string& pattern);

/// Whether the path or glob is of a directory of datasets whose rows are such documents: of different
/// lengths, or without a column that may hold labels of another kind. Those with padding are documents, too.
[[nodiscard]] bool holds_arrow_documents(const std::string& pattern);

}  // namespace accel
