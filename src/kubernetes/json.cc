#include "kubernetes/json.h"

#include <simdjson.h>

#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/strings.h"

namespace penstock::kubernetes {

namespace dom = simdjson::dom;

namespace {
constexpr size_t kMaxDepth = 256;
constexpr size_t kKeptBytes = 256 * 1024;
}  // namespace

// The handle's bytes are those of simdjson's own, which is trivially copyable and no larger.
struct Json::Inside {
  static_assert(sizeof(dom::element) <= sizeof(Json::element_));
  static_assert(std::is_trivially_copyable_v<dom::element>);
  static dom::element get(const Json& json) {
    dom::element out;
    std::memcpy(static_cast<void*>(&out), json.element_.data(), sizeof out);
    return out;
  }
  static Json make(dom::element element) {
    Json out;
    out.present_ = !element.is_null();
    std::memcpy(out.element_.data(), static_cast<const void*>(&element), sizeof element);
    return out;
  }
  static config::Node node(dom::element element);
};

bool Json::is_object() const {
  return present_ && Inside::get(*this).is_object();
}

bool Json::is_array() const {
  return present_ && Inside::get(*this).is_array();
}

Json Json::operator[](std::string_view key) const {
  if (!present_) return {};
  dom::element found;
  if (Inside::get(*this)[key].get(found) != simdjson::SUCCESS) return {};
  return Inside::make(found);
}

std::string_view Json::text_or(std::string_view otherwise) const {
  std::string_view out;
  if (!present_ || Inside::get(*this).get(out) != simdjson::SUCCESS) return otherwise;
  return out;
}

std::optional<int64_t> Json::integer() const {
  int64_t out = 0;
  if (!present_ || Inside::get(*this).get(out) != simdjson::SUCCESS) return std::nullopt;
  return out;
}

bool Json::boolean() const {
  bool out = false;
  return present_ && Inside::get(*this).get(out) == simdjson::SUCCESS && out;
}

void Json::for_each_item(const std::function<void(Json)>& each) const {
  dom::array array;
  if (!present_ || Inside::get(*this).get(array) != simdjson::SUCCESS) return;
  for (const dom::element item : array) each(Inside::make(item));
}

void Json::for_each_member(const std::function<void(std::string_view, Json)>& each) const {
  dom::object object;
  if (!present_ || Inside::get(*this).get(object) != simdjson::SUCCESS) return;
  for (const dom::key_value_pair member : object) each(member.key, Inside::make(member.value));
}

config::Node Json::Inside::node(dom::element element) {
  using Kind = config::Node::Kind;
  config::Node out;
  switch (element.type()) {
    case dom::element_type::OBJECT:
      out.kind = Kind::kMap;
      for (const dom::key_value_pair member : dom::object(element)) {
        // Of duplicates the first counts, as in look-ups.
        if (out.find(member.key) == nullptr)
          out.members.push_back({std::string(member.key), node(member.value)});
      }
      break;
    case dom::element_type::ARRAY:
      out.kind = Kind::kList;
      for (const dom::element item : dom::array(element)) out.items.push_back(node(item));
      break;
    case dom::element_type::STRING:
      out.kind = Kind::kString;
      out.text = std::string_view(element);
      break;
    case dom::element_type::INT64:
      out.kind = Kind::kInt;
      out.integer = int64_t(element);
      out.number = static_cast<double>(out.integer);
      out.text = std::to_string(out.integer);
      break;
    case dom::element_type::UINT64:  // beyond int64_t
    case dom::element_type::DOUBLE:
      out.kind = Kind::kDouble;
      out.number = double(element);
      out.text = simdjson::minify(element);
      break;
    case dom::element_type::BOOL:
      out.kind = Kind::kBool;
      out.boolean = bool(element);
      out.text = out.boolean ? "true" : "false";
      break;
    case dom::element_type::NULL_VALUE:
      break;
  }
  return out;
}

config::Node Json::to_node() const {
  return present_ ? Inside::node(Inside::get(*this)) : config::Node();
}

config::Node Json::to_node(std::span<const std::string> fields) const {
  config::Node out;
  out.kind = config::Node::Kind::kMap;
  const auto member = [](config::Node& map, std::string_view name) -> config::Node& {
    for (config::Node::Member& one : map.members) {
      if (one.first == name) return one.second;
    }
    return map.members.emplace_back(config::Node::Member{std::string(name), {}}).second;
  };
  for (const std::string& field : fields) {
    const std::vector<std::string_view> names = split(field, '.');
    Json value = *this;
    for (const std::string_view name : names) value = value[name];
    if (!value.present()) continue;
    config::Node* at = &out;
    for (const std::string_view name : names) {
      at = &member(*at, name);
      at->kind = config::Node::Kind::kMap;
    }
    *at = value.to_node();
  }
  return out;
}

std::string Json::to_string() const {
  return present_ ? simdjson::minify(Inside::get(*this)) : "null";
}

struct JsonDocument::Parser {
  dom::parser parser;
};

JsonDocument::JsonDocument() : parser_(std::make_unique<Parser>()) {}
JsonDocument::~JsonDocument() = default;

Result<Json> JsonDocument::parse(std::string_view text, bool padded) {
  dom::parser& parser = parser_->parser;
  static_assert(kPaddingBytes >= simdjson::SIMDJSON_PADDING);
  if (parser.max_depth() != kMaxDepth || parser.capacity() < text.size()) {
    if (const auto error = parser.allocate(std::max<size_t>(text.size(), 16 * 1024), kMaxDepth); error) {
      return Error{ErrorCode::kPayloadTooLarge, simdjson::error_message(error)};
    }
  }
  dom::element root;
  const auto error = parser.parse(text.data(), text.size(), !padded).get(root);
  if (error != simdjson::SUCCESS) return Error{ErrorCode::kBadGateway, simdjson::error_message(error)};
  return Json::Inside::make(root);
}

void JsonDocument::shrink() {
  if (parser_->parser.capacity() > kKeptBytes) parser_ = std::make_unique<Parser>();
}

}  // namespace penstock::kubernetes
