#include "config/objects_file.h"

#include <fmt/format.h>

#include <set>
#include <tuple>

#include "config/decode.h"
#include "config/files.h"

namespace penstock::config {

namespace {

constexpr size_t kMaxNodes = 1'000'000;

std::string text_of(const Node* node) {
  return node != nullptr && node->kind == Node::Kind::kString ? node->text : std::string();
}

class ObjectsDecoder {
 public:
  void document(const Node& node, std::string_view source) {
    const std::string path(source);
    if (!node.is_map()) {
      errors_.add(path, fmt::format("expected object, got {}", shown_with_kind(node)), node.line);
      return;
    }
    const std::string api_version = text_of(node.find("apiVersion"));
    const std::string kind = text_of(node.find("kind"));
    const Node* items = node.find("items");
    if (!kind.ends_with("List") || items == nullptr) return object(node, path, api_version, kind);
    // Items of a plain List name their own kind.
    const std::string of_items = kind.substr(0, kind.size() - 4);
    for_each_item(items, path + ": items", errors_, [&](const Node& item, const std::string& at) {
      if (!item.is_map()) {
        errors_.add(at, fmt::format("expected object, got {}", shown_with_kind(item)), item.line);
        return;
      }
      const std::string own_version = text_of(item.find("apiVersion"));
      const std::string own_kind = text_of(item.find("kind"));
      object(item, at, own_version.empty() && !of_items.empty() ? api_version : own_version,
             own_kind.empty() ? of_items : own_kind);
    });
  }

  Result<std::vector<ApiObject>> finish() {
    if (!errors_.empty()) return errors_.joined();
    return std::move(objects_);
  }

 private:
  void object(const Node& node, const std::string& path, const std::string& api_version,
              const std::string& kind) {
    ApiObject out;
    const size_t slash = api_version.find('/');
    if (slash != std::string::npos) out.group = api_version.substr(0, slash);
    out.version = slash == std::string::npos ? api_version : api_version.substr(slash + 1);
    out.kind = kind;
    if (out.version.empty()) errors_.add(path, "apiVersion is missing", node.line);
    if (out.kind.empty()) errors_.add(path, "kind is missing", node.line);
    const Node* meta = node.find("metadata");
    if (meta != nullptr && meta->is_map()) {
      out.name = text_of(meta->find("name"));
      if (const std::string ns = text_of(meta->find("namespace")); !ns.empty()) out.ns = ns;
    }
    if (out.name.empty()) errors_.add(path, "metadata.name is missing", node.line);
    if (!seen_.emplace(out.group, out.version, out.kind, out.ns, out.name).second) {
      errors_.add(path, fmt::format("{} {}/{} comes twice", out.kind, out.ns, out.name), node.line);
    }
    out.node = node;
    objects_.push_back(std::move(out));
  }

  Errors errors_;
  std::set<std::tuple<std::string, std::string, std::string, std::string, std::string>> seen_;
  std::vector<ApiObject> objects_;
};

}  // namespace

Result<std::vector<ApiObject>> decode_objects(std::string_view text, std::string_view source) {
  const ParseLimits limits{.max_bytes = kMaxObjectsFileBytes, .max_nodes = kMaxNodes};
  const Result<std::vector<Node>> documents = parse_documents(text, source, limits);
  if (!documents.ok()) return documents.error();
  ObjectsDecoder decoder;
  for (const Node& document : *documents) decoder.document(document, source);
  return decoder.finish();
}

Result<std::vector<ApiObject>> load_objects(const std::string& path) {
  const Result<std::string> text = read_file(path, kMaxObjectsFileBytes);
  if (!text.ok()) return text.error();
  return decode_objects(*text, path);
}

}  // namespace penstock::config
