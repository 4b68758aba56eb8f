#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/node.h"

namespace penstock::config {

// What the documentation says of one parameter: made from the same bind() call that decodes it.
struct ParamDoc {
  std::string name;
  std::string type;           // "int", "number", "bool", "string", "duration", "list of string", "object"
  std::string default_value;  // as it would be written, "" for none
  std::string unit;           // "requests", "tokens", "ratio", "ms", "" where none
  std::string text;
};

// Decodes one map into a struct, strictly, or describes it. A plugin (or settings section) writes one
// function
//
//   void bind(config::Binder& b, Params& p) {
//     b.field("threshold", p.threshold, "requests", "Queue length at which the score reaches 0.");
//   }
//
// and uses it for both: `decode_params(node, path, [&](Binder& b) { bind(b, params); })` and
// `describe_params(...)`. Unknown keys, wrong types and out-of-range numbers are errors that name the
// field's path, the value and the line; all of them are collected and joined. Matching of names is
// case-insensitive with `Case::kInsensitive` (plugin parameters, as Go's decoder does).
class Binder {
 public:
  enum class Case : uint8_t { kSensitive, kInsensitive };
  // Whether a member that no field has taken is an error. Objects of a cluster may be newer than we are.
  enum class Unknown : uint8_t { kRefused, kIgnored };

  // Decoding. `node` may be nullptr or null: every field keeps its default.
  Binder(const Node* node, std::string path, Case match, Unknown unknown = Unknown::kRefused);
  // Describing.
  Binder();

  void field(std::string_view name, bool& out, std::string_view unit, std::string_view doc);
  void field(std::string_view name, int& out, std::string_view unit, std::string_view doc);
  void field(std::string_view name, int64_t& out, std::string_view unit, std::string_view doc);
  void field(std::string_view name, double& out, std::string_view unit, std::string_view doc);
  void field(std::string_view name, std::string& out, std::string_view unit, std::string_view doc);
  void field(std::string_view name, std::optional<int64_t>& out, std::string_view unit, std::string_view doc);
  void field(std::string_view name, std::optional<double>& out, std::string_view unit, std::string_view doc);
  void field(std::string_view name, std::optional<bool>& out, std::string_view unit, std::string_view doc);
  void field(std::string_view name, std::optional<std::string>& out, std::string_view unit,
             std::string_view doc);
  // A Go duration string ("200ms").
  void field(std::string_view name, Duration& out, std::string_view unit, std::string_view doc);
  void field(std::string_view name, std::vector<std::string>& out, std::string_view unit,
             std::string_view doc);
  // A Kubernetes quantity, number or string ("1Gi"), into an integer.
  void quantity(std::string_view name, int64_t& out, std::string_view unit, std::string_view doc);
  // A nested value taken as it is: nullptr when absent. For nested objects, call decode_params on it.
  void node(std::string_view name, const Node*& out, std::string_view doc);

  // True when the document had this field with a value other than null (false while describing).
  bool present(std::string_view name) const;
  // Adds an error about a field: "<path>.<name>: <message> (line N)".
  void fail(std::string_view name, std::string_view message);

  bool describing() const { return describing_; }
  const std::vector<ParamDoc>& docs() const { return docs_; }
  // Unknown keys and everything collected; call once, after all fields.
  Status finish();

 private:
  const Node* take(std::string_view name);
  void type_error(std::string_view name, const Node& node, std::string_view wanted);
  void describe(std::string_view name, std::string_view type, std::string default_value,
                std::string_view unit, std::string_view doc);

  const Node* node_ = nullptr;
  std::string path_;
  Case match_ = Case::kSensitive;
  Unknown unknown_ = Unknown::kRefused;
  bool describing_ = false;
  std::vector<std::string> known_;
  std::vector<std::string> errors_;
  std::vector<ParamDoc> docs_;
};

// Runs `bind(binder)` over the node and returns the joined errors.
template <typename Bind>
Status decode_params(const Node* node, std::string path, Bind&& bind,
                     Binder::Case match = Binder::Case::kInsensitive,
                     Binder::Unknown unknown = Binder::Unknown::kRefused) {
  Binder binder(node, std::move(path), match, unknown);
  bind(binder);
  return binder.finish();
}

template <typename Bind>
std::vector<ParamDoc> describe_params(Bind&& bind) {
  Binder binder;
  bind(binder);
  return binder.docs();
}

}  // namespace penstock::config
