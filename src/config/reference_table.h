#pragma once

#include <span>
#include <string>
#include <string_view>

#include "config/params.h"

namespace penstock::config {

// Text for the cell of a Markdown table: one line, with no bar that would end it.
std::string table_cell(std::string_view text);

// The fields as a Markdown table, one a row; `column` is the heading of their names.
std::string fields_table(std::string_view column, std::span<const ParamDoc> fields);

// One object of a document, by its path ("" is the document itself): what it is, "" where that goes without
// saying, and its fields.
std::string section_reference(std::string_view path, std::string_view text, std::span<const ParamDoc> fields);

}  // namespace penstock::config
