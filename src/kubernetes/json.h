#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "config/node.h"

namespace penstock::kubernetes {

// A value of a parsed document, or nothing: what is absent, null, or asked of a value of another kind is
// absent again, so a path of look-ups needs one check at its end. A handle; valid until its document is
// parsed again or destroyed. Texts are views into the document.
class Json {
 public:
  Json() = default;

  bool present() const { return present_; }  // and not null
  bool is_object() const;
  bool is_array() const;
  // The member of this name (of duplicates the first), or nothing.
  Json operator[](std::string_view key) const;
  std::string_view text() const { return text_or({}); }
  std::string_view text_or(std::string_view otherwise) const;
  std::optional<int64_t> integer() const;
  bool boolean() const;  // false unless it is true
  // Items of an array in order, members of an object in theirs; nothing else has any.
  void for_each_item(const std::function<void(Json)>& each) const;
  void for_each_member(const std::function<void(std::string_view name, Json value)>& each) const;
  // A copy without lines, for the decoders of config/.
  config::Node to_node() const;
  // The same of these fields alone ("metadata.labels"), each whole; "." separates names of maps in maps.
  config::Node to_node(std::span<const std::string> fields) const;
  // As compact JSON.
  std::string to_string() const;

 private:
  friend class JsonDocument;
  struct Inside;
  alignas(8) std::array<std::byte, 16> element_{};
  bool present_ = false;
};

// Parses one JSON text after another into the same memory (simdjson). One thread.
class JsonDocument {
 public:
  JsonDocument();
  ~JsonDocument();
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  // The whole text, checked to its end; nesting deeper than 256 is an error. kPaddingBytes behind the text
  // spare a copy: say so by `padded`.
  static constexpr size_t kPaddingBytes = 64;
  Result<Json> parse(std::string_view text, bool padded = false);
  // Gives memory back that only a large text needed.
  void shrink();

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace penstock::kubernetes
