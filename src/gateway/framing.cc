#include "gateway/framing.h"

#include <algorithm>
#include <array>

#include "base/strings.h"
#include "director/fields.h"

namespace penstock::gateway {

namespace {

using io::BodyFraming;
using io::HeaderField;

constexpr std::array<std::string_view, 12> kHopByHop{
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "expect",
    "http2-settings",
};

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::any_of(names.begin(), names.end(), [name](std::string_view n) { return n == name; });
}

// Which first letters occur among the names, so that most fields need one look.
template <size_t N>
constexpr std::array<bool, 256> first_letters(const std::array<std::string_view, N>& names) {
  std::array<bool, 256> out{};
  for (const std::string_view name : names) out[static_cast<unsigned char>(name[0])] = true;
  return out;
}
constexpr std::array<bool, 256> kHopByHopLetters = first_letters(kHopByHop);

// Bit n: one of the names has n letters.
template <size_t N>
constexpr uint64_t sizes(const std::array<std::string_view, N>& names) {
  uint64_t out = 0;
  for (const std::string_view name : names) out |= uint64_t{1} << name.size();
  return out;
}
constexpr uint64_t kHopByHopSizes = sizes(kHopByHop);

}  // namespace

bool is_hop_by_hop(std::string_view name) {
  if (name.empty() || name.size() >= 64 || (kHopByHopSizes >> name.size() & 1U) == 0) return false;
  return kHopByHopLetters[static_cast<unsigned char>(name[0])] && contains(kHopByHop, name);
}

namespace {

// True when a Connection field of the message names this field. "close" and "keep-alive" name none that is
// not dropped anyway.
class ConnectionNames {
 public:
  explicit ConnectionNames(const io::HeaderFields& fields) : fields_(fields) {
    for (const HeaderField& field : fields) {
      if (field.name == "connection" && !ascii_iequals(field.value, "close") &&
          !ascii_iequals(field.value, "keep-alive")) {
        any_ = true;
      }
    }
  }
  bool contains(std::string_view name) const {
    if (!any_) return false;
    return std::any_of(fields_.begin(), fields_.end(), [name](const HeaderField& field) {
      return field.name == "connection" && io::list_has_token(field.value, name);
    });
  }

 private:
  const io::HeaderFields& fields_;
  bool any_ = false;
};

}  // namespace

void request_fields(const io::RequestHead& head, const RequestRules& rules, std::string& scratch,
                    std::vector<HeaderField>& out) {
  const ConnectionNames connection(head.fields);
  scratch.clear();
  out.push_back({"host", rules.host});
  for (const HeaderField& field : head.fields) {
    const std::string_view name = field.name;
    if (name == "host") continue;
    if (is_hop_by_hop(name)) continue;
    if (connection.contains(name)) continue;
    if (name == "x-request-id" || name == "x-forwarded-proto" || name == "x-forwarded-host") continue;
    if (name == "x-forwarded-for") {
      if (!scratch.empty()) scratch += ", ";
      scratch += field.value;
      continue;
    }
    if (name == "authorization") {
      if (rules.drop_credentials || (rules.to_engine && !rules.authorization.empty())) continue;
    } else if (name == "x-api-key" || name == "api-key") {
      if (rules.drop_credentials) continue;
    } else if (name == "accept-encoding") {
      if (rules.drop_accept_encoding) continue;
    } else if (name == "traceparent" || name == "tracestate") {
      if (!rules.traceparent.empty()) continue;
    } else if (name == kModelNameHeader || (rules.to_engine && director::is_control_field(name))) {
      continue;
    }
    out.push_back(field);
  }
  if (rules.to_engine && !rules.authorization.empty()) out.push_back({"authorization", rules.authorization});
  out.push_back({"x-request-id", rules.request_id});
  if (!rules.traceparent.empty()) out.push_back({"traceparent", rules.traceparent});
  if (!rules.tracestate.empty()) out.push_back({"tracestate", rules.tracestate});
  if (scratch.empty()) {
    if (!rules.peer_ip.empty()) out.push_back({"x-forwarded-for", rules.peer_ip});
  } else {
    scratch += ", ";
    scratch += rules.peer_ip;
    out.push_back({"x-forwarded-for", scratch});
  }
  out.push_back({"x-forwarded-proto", rules.scheme});
  if (!head.authority.empty()) out.push_back({"x-forwarded-host", head.authority});
}

void response_fields(const io::ResponseHead& head, const ResponseRules& rules,
                     std::vector<HeaderField>& out) {
  const ConnectionNames connection(head.fields);
  for (const HeaderField& field : head.fields) {
    const std::string_view name = field.name;
    if (is_hop_by_hop(name) || name == "x-request-id") continue;
    if (connection.contains(name)) continue;
    if (rules.body_changed && (name == "content-md5" || name == "digest" || name == "content-digest" ||
                               name == "repr-digest" || name == "etag" || name == "accept-ranges")) {
      continue;
    }
    out.push_back(field);
  }
  out.push_back({"x-request-id", rules.request_id});
  if (!rules.endpoint.empty()) out.push_back({"x-penstock-endpoint", rules.endpoint});
}

BodyFraming response_framing(std::string_view method, int status, std::optional<uint64_t> length,
                             bool body_changed) {
  if (status == 204 || status == 304) return BodyFraming::none();
  if (method == "HEAD") return length ? BodyFraming::of_length(*length) : BodyFraming::none();
  if (length && !body_changed) return BodyFraming::of_length(*length);
  return BodyFraming::chunked();
}

void apply_edits(std::span<const HeaderEdits::Edit> edits, std::vector<io::HeaderField>& fields) {
  for (const HeaderEdits::Edit& edit : edits) {
    std::erase_if(fields, [&](const io::HeaderField& field) { return ascii_iequals(field.name, edit.name); });
  }
  for (const HeaderEdits::Edit& edit : edits) {
    if (!edit.remove) fields.push_back({edit.name, edit.value});
  }
}

}  // namespace penstock::gateway
