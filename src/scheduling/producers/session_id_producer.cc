#include "scheduling/producers/session_id_producer.h"

#include "base/strings.h"

namespace penstock::scheduling {

void SessionIdProducer::bind(config::Binder& b, Params& p) {
  b.field("headerName", p.header, "", "Name of the header with the session id.");
  b.field("cookieName", p.cookie, "", "Name of the cookie with the session id, case-sensitive.");
  if (b.describing()) return;
  p.header = ascii_lower(trim(p.header));
  p.cookie = std::string(trim(p.cookie));
  constexpr std::string_view kOne =
      "'session-id-producer' requires exactly one of headerName or cookieName to be set";
  if (p.header.empty() && p.cookie.empty()) b.fail("headerName", kOne);
  if (!p.header.empty() && !p.cookie.empty()) b.fail("headerName", std::string(kOne) + ", not both");
}

void SessionIdProducer::declare_data(DataDeclaration& declaration) const {
  declaration.produce<SessionId>(key());
}

void SessionIdProducer::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(key());
}

Status SessionIdProducer::produce(SchedulingContext& ctx) const {
  if (slot_ == kNoSlot) return {};
  std::string_view value;
  if (!params_.header.empty()) {
    value = find_header(ctx.request.headers, params_.header).value_or(std::string_view());
  } else {
    std::string_view rest = find_header(ctx.request.headers, "cookie").value_or(std::string_view());
    while (!rest.empty()) {
      const size_t end = rest.find(';');
      const std::string_view pair = trim(rest.substr(0, end));
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
      const size_t equals = pair.find('=');
      if (equals == std::string_view::npos || pair.substr(0, equals) != params_.cookie) continue;
      value = pair.substr(equals + 1);
      break;
    }
  }
  value = trim(value);
  if (!value.empty()) ctx.attributes.create_value<SessionId>(slot_)->text = value;
  return {};
}

}  // namespace penstock::scheduling
