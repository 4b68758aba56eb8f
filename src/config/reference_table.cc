#include "config/reference_table.h"

#include <fmt/format.h>

namespace penstock::config {

namespace {

std::string code(std::string_view text) {
  return text.empty() ? std::string() : "`" + table_cell(text) + "`";
}

}  // namespace

std::string table_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string fields_table(std::string_view column, std::span<const ParamDoc> fields) {
  std::string out = fmt::format("| {} | type | default | unit | meaning |\n|---|---|---|---|---|\n", column);
  for (const ParamDoc& field : fields) {
    out += fmt::format("| {} | {} | {} | {} | {} |\n", code(field.name), table_cell(field.type),
                       code(field.default_value), table_cell(field.unit), table_cell(field.text));
  }
  return out;
}

std::string section_reference(std::string_view path, std::string_view text,
                              std::span<const ParamDoc> fields) {
  std::string out = path.empty() ? std::string("\n## Top level\n\n") : fmt::format("\n## `{}`\n\n", path);
  if (!text.empty()) out += fmt::format("{}\n\n", text);
  return out + fields_table("field", fields);
}

}  // namespace penstock::config
